"""Hash the bytes of memory, and tell whether pieces of it still have those that their hashes were made of.

`void content_hash(data*, i64 bytes, out*)` gives 64 bits that differ where any byte differs. It finds changes,
not attacks. Each step of an accumulator is one-to-one in its state and in what is read, so a change of one word always
changes the result; independent accumulators let it run as fast as memory is read.

`void same_content(frame*)` and, for lanes, `void same_content_<lane>(frame*)` mark a frame where a piece has others.
The frame says which program runs in it, as for any other (worker_module.py); behind the lanes' functions this one has
the places of two tables: where the pieces of each lane begin, and of each piece its address, its bytes and their hash.
"""

from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant, constants, vector
from weft.codegen.threads.layout import MARK_OFFSET, PROGRAM_OFFSET
from weft.codegen.threads.workers import FIRST_LANE_SLOT, LANES_SLOT
from weft.target import Target

CONTENT_HASH, SAME_CONTENT = "content_hash", "same_content"
ACCUMULATORS = 8
WORD_BYTES = 8
PIECE_WORDS = 3
DIFFERS = 1
MULTIPLIER = -7046029254386353131  # odd, its bits evenly spread: 2 to the 64th over the golden ratio


def content_hash_module(target: Target) -> str:
    """Write the module."""
    module = Module(target)
    _write_hash_into(module)
    return str(module)


def _write_hash_into(module: Module) -> None:
    _write_hash(module.function(CONTENT_HASH, ["ptr", "i64", "ptr"]), module.target.lanes(8 * WORD_BYTES))


def _write_hash(f: FunctionWriter, lanes: int) -> None:
    data, size, out = f.parameters
    block = ACCUMULATORS * lanes
    starts = [constants("i64", [place * lanes + lane + 1 for lane in range(lanes)]) for place in range(ACCUMULATORS)]
    blocks, _ = f.divide(size, block * WORD_BYTES)
    with f.loop(0, blocks, carried=starts) as loop:
        base = f.multiply(loop.index, block)
        loop.carry(
            *(
                _step(f, state, _words(f, data, f.add(base, place * lanes), lanes))
                for place, state in enumerate(loop.carried)
            )
        )
    state = size
    for accumulator in loop.carried:
        for lane in range(lanes):
            state = _step(f, state, f.extract(accumulator, lane))
    words, _ = f.divide(size, WORD_BYTES)
    with f.loop(f.multiply(blocks, block), words, carried=[state]) as loop:
        loop.carry(_step(f, loop.carried[0], _words(f, data, loop.index, 1)))
    with f.loop(f.multiply(words, WORD_BYTES), size, carried=loop.carried) as rest:
        byte = f.load("i8", f.offset(data, "i8", rest.index))
        rest.carry(_step(f, rest.carried[0], f.convert("zext", byte, "i64")))
    f.store(rest.carried[0], out)


def _step(f: FunctionWriter, state: Register, read: Register) -> Register:
    product = f.binary("mul", f.binary("xor", state, read), constant(state.kind, MULTIPLIER))
    return f.binary("xor", product, f.binary("lshr", product, constant(state.kind, 32)))


def _words(f: FunctionWriter, data: Register, index: Register, lanes: int) -> Register:
    """Load words of any alignment."""
    kind = vector("i64", lanes)
    return f.emit(kind, f"load {kind}, {f.offset(data, 'i64', index)}, align 1")


def same_content_module(target: Target, lanes: int) -> str:
    """Write the module for so many lanes."""
    module = Module(target)
    _write_hash_into(module)
    _write_same(module.function(SAME_CONTENT, ["ptr"]), None)
    for lane in range(lanes):
        _write_same(module.function(f"{SAME_CONTENT}_{lane}", ["ptr"]), lane)
    return str(module)


def _write_same(f: FunctionWriter, lane: int | None) -> None:
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
