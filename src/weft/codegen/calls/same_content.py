"""The text of a module that tells whether pieces of memory still have the bytes that their hashes were made of.

`void same_content(frame*)` and, for lanes, `void same_content_<lane>(frame*)` mark a frame where a piece has others.
The frame says which program runs in it, as for any other (worker_module.py); behind the lanes' functions this one has
the places of two tables: where the pieces of each lane begin, and of each piece its address, its bytes and their hash.
"""

from weft.codegen.calls.content_hash import CONTENT_HASH, emit_content_hash
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.threads.layout import MARK_OFFSET, PROGRAM_OFFSET
from weft.codegen.threads.workers import FIRST_LANE_SLOT, LANES_SLOT
from weft.target import Target

SAME_CONTENT = "same_content"
PIECE_WORDS = 3
DIFFERS = 1


def same_content_module(target: Target, lanes: int) -> str:
    """Write the module for so many lanes."""
    module = Module(target)
    emit_content_hash(module)
    _write(module.function(SAME_CONTENT, ["ptr"]), None)
    for lane in range(lanes):
        _write(module.function(f"{SAME_CONTENT}_{lane}", ["ptr"]), lane)
    return str(module)


def _write(f: FunctionWriter, lane: int | None) -> None:
    """Write the function of a lane, or of all."""
    # SAFETY: whoever describes the program holds the tables, and the memory of the pieces.
    (frame,) = f.parameters
    program = f.load("ptr", f.offset(frame, "i8", PROGRAM_OFFSET))
    lanes = f.load("i64", f.offset(program, "i64", LANES_SLOT))
    tables = f.offset(program, "i64", f.add(lanes, FIRST_LANE_SLOT))
    starts, pieces = f.load("ptr", tables), f.load("ptr", f.offset(tables, "i64", 1))
    begin = f.load("i64", f.offset(starts, "i64", lane or 0))
    end = f.load("i64", f.offset(starts, "i64", lanes if lane is None else lane + 1))
    found = f.scratch("i64", 1)
    mark = f.offset(frame, "i8", MARK_OFFSET)
    with f.loop(begin, end) as loop:
        piece = f.offset(pieces, "i64", f.multiply(loop.index, PIECE_WORDS))
        address, size, expected = (f.load("i64", f.offset(piece, "i64", place)) for place in range(PIECE_WORDS))
        f.call(CONTENT_HASH, [f.emit("ptr", f"inttoptr {address} to ptr"), size, found])
        with f.only_if(f.compare("icmp ne", f.load("i64", found), expected)):
            # Several lanes may write it, all the same.
            f.emit_void(f"store atomic {f.integer(DIFFERS)}, {mark} monotonic, align 8")
