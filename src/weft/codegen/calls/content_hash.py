"""The text of a module with `void content_hash(data*, i64 bytes, out*)`: 64 bits that differ where any byte differs.

It finds changes, not attacks. Each step of an accumulator is one-to-one in its state and in what is read, so a change
of one word always changes the result; independent accumulators let it run as fast as memory is read.
"""

from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, constant, constants, vector
from weft.target import Target

CONTENT_HASH = "content_hash"
ACCUMULATORS = 8
WORD_BYTES = 8
MULTIPLIER = -7046029254386353131  # odd, its bits evenly spread: 2 to the 64th over the golden ratio


def content_hash_module(target: Target) -> str:
    """Write the module."""
    module = Module(target)
    emit_content_hash(module)
    return str(module)


def emit_content_hash(module: Module) -> None:
    """Write the function into a module."""
    _write(module.function(CONTENT_HASH, ["ptr", "i64", "ptr"]), module.target.lanes(8 * WORD_BYTES))


def _write(f: FunctionWriter, lanes: int) -> None:
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
