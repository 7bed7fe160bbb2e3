"""The text of the module that measures a machine: loops that only multiply and add, only read, or only hand over.

`void multiply_adds(i64 rounds, out*)` does ACCUMULATORS vectors of f32 a round.
`void sweep(data*, i64 bytes, i64 times, out*)` reads all bytes several times, whole blocks of SWEEP_BYTES.
`void ping(own*, other*, i64 first, i64 last)` and `pong` hand over to each other once for each number, by the counters
that lanes use.
"""

from weft.codegen.module import FunctionWriter, Module
from weft.codegen.register import constant, vector
from weft.codegen.threads.flags import PUBLISH, WAIT, emit_publish, emit_wait
from weft.target import Target

ACCUMULATORS = 12  # enough that none waits for the one before
SWEEP_BYTES = 1024


def measure_module(target: Target) -> str:
    """Write the module."""
    module = Module(target)
    emit_wait(module)
    emit_publish(module)
    _multiply_adds(module.function("multiply_adds", ["i64", "ptr"]), target.lanes(32))
    _sweep(module.function("sweep", ["ptr", "i64", "i64", "ptr"]), target.vector_bytes)
    _hand_over(module.function("ping", ["ptr", "ptr", "i64", "i64"]), answers=False)
    _hand_over(module.function("pong", ["ptr", "ptr", "i64", "i64"]), answers=True)
    return str(module)


def _multiply_adds(f: FunctionWriter, lanes: int) -> None:
    rounds, out = f.parameters
    kind = vector("float", lanes)
    # LLVM must not know the factor: it is what the caller has there.
    factor = f.load(kind, out)
    # Equal sums would be one sum.
    starts = [constant(kind, place + 1) for place in range(ACCUMULATORS)]
    with f.loop(0, rounds, carried=starts) as loop:
        loop.carry(*(f.fma(value, factor, factor) for value in loop.carried))
    total = loop.carried[0]
    for value in loop.carried[1:]:
        total = f.binary("fadd", total, value)
    f.store(total, out)


def _sweep(f: FunctionWriter, vector_bytes: int) -> None:
    data, size, times, out = f.parameters
    lanes = vector_bytes // 4
    kind = vector("i32", lanes)
    blocks, _ = f.divide(size, SWEEP_BYTES)
    with f.loop(0, times, carried=[constant(kind, 0)] * 4) as again:
        with f.loop(0, blocks, carried=again.carried) as loop:
            base = f.offset(data, "i8", f.multiply(loop.index, SWEEP_BYTES))
            values = list(loop.carried)
            for place in range(SWEEP_BYTES // vector_bytes):
                read = f.load(kind, f.offset(base, "i8", place * vector_bytes))
                values[place % 4] = f.binary("xor", values[place % 4], read)
            loop.carry(*values)
        again.carry(*loop.carried)
    for place, value in enumerate(again.carried):
        f.store(value, f.offset(out, "i8", place * vector_bytes))


def _hand_over(f: FunctionWriter, *, answers: bool) -> None:
    own, other, first, last = f.parameters
    with f.loop(first, last) as loop:
        number = f.add(loop.index, 1)
        # The partner runs the other one of the two functions over the same numbers: one of them speaks first.
        calls = [f"call void @{PUBLISH}({own}, {number})", f"call void @{WAIT}({other}, {number})"]
        for call in reversed(calls) if answers else calls:
            f.emit_void(call)
