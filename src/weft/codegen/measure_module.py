"""Write the modules that measure a machine: loops that only multiply and add, only read, only hand over, or only wait.

`void multiply_adds(i64 rounds, out*)` does ACCUMULATORS vectors of f32 a round.
`void sweep(data*, i64 bytes, i64 times, out*)` reads all bytes several times, whole blocks of SWEEP_BYTES.
`void flush(data*, i64 bytes)` puts all bytes out of all caches, where programs can do that.
`void ping(own*, other*, i64 first, i64 last, data*, i64 bytes, out*)` and `pong` hand over to each other once for each
number, by the counters that lanes use: ping so many bytes that it has just written, which pong reads.

`void chase(start*, i64 steps, out*)` follows pointers, each of which lies where the one before points to.
`void chain(i64 steps, out*)` does one scalar multiply-add after another.
"""

from collections.abc import Sequence

from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant, vector
from weft.codegen.threads.flags import PUBLISH, WAIT, emit_publish, emit_wait
from weft.target import Target

ACCUMULATORS = 12  # enough that none waits for the one before
SWEEP_BYTES = 1024
LINE_BYTES = 64  # that are flushed at once
WAYS = 4  # sums of what is read, so that none waits for the one before


def measure_module(target: Target) -> str:
    """Write the module."""
    module = Module(target)
    emit_wait(module)
    emit_publish(module)
    _multiply_adds(module.function("multiply_adds", ["i64", "ptr"]), target.lanes(32))
    _sweep(module.function("sweep", ["ptr", "i64", "i64", "ptr"]), target.lanes(32))
    if can_flush(target):
        _flush(module.function("flush", ["ptr", "i64"]))
    for name, hand_over in (("ping", _ping), ("pong", _pong)):
        hand_over(module.function(name, ["ptr", "ptr", "i64", "i64", "ptr", "i64", "ptr"]), target.lanes(32))
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


def _sweep(f: FunctionWriter, lanes: int) -> None:
    data, size, times, out = f.parameters
    with f.loop(0, times, carried=_nothing(lanes)) as again:
        again.carry(*_read(f, data, size, lanes, again.carried))
    _keep(f, again.carried, lanes, out)


def can_flush(target: Target) -> bool:
    """Tell whether programs for a target can put memory out of its caches."""
    return target.triple.startswith("x86_64")


def _flush(f: FunctionWriter) -> None:
    data, size = f.parameters
    with f.loop(0, size, LINE_BYTES) as loop:
        f.intrinsic("llvm.x86.sse2.clflush", "void", f.offset(data, "i8", loop.index), suffix=[])
    f.emit_void("fence seq_cst")


def _ping(f: FunctionWriter, lanes: int) -> None:
    own, other, first, last, data, size, _ = f.parameters
    with f.loop(first, last) as loop:
        number = f.add(loop.index, 1)
        _write(f, data, size, lanes, f.convert("trunc", number, "i32"))
        # The partner runs pong over the same numbers: it waits for this one before it speaks.
        f.emit_void(f"call void @{PUBLISH}({own}, {number})")
        f.emit_void(f"call void @{WAIT}({other}, {number})")


def _pong(f: FunctionWriter, lanes: int) -> None:
    own, other, first, last, data, size, out = f.parameters
    with f.loop(first, last, carried=_nothing(lanes)) as loop:
        number = f.add(loop.index, 1)
        # The partner runs ping over the same numbers: it speaks first.
        f.emit_void(f"call void @{WAIT}({other}, {number})")
        read = _read(f, data, size, lanes, loop.carried)
        f.emit_void(f"call void @{PUBLISH}({own}, {number})")
        loop.carry(*read)
    _keep(f, loop.carried, lanes, out)


def _nothing(lanes: int) -> list[Register]:
    return [constant(vector("i32", lanes), 0)] * WAYS


def _read(
    f: FunctionWriter, data: Register, size: Register, lanes: int, seen: Sequence[Register]
) -> Sequence[Register]:
    """Read all bytes into what has been seen so far."""
    blocks, _ = f.divide(size, SWEEP_BYTES)
    with f.loop(0, blocks, carried=seen) as loop:
        base = f.offset(data, "i8", f.multiply(loop.index, SWEEP_BYTES))
        values = list(loop.carried)
        for place in range(SWEEP_BYTES // (4 * lanes)):
            read = f.load(vector("i32", lanes), f.offset(base, "i8", 4 * lanes * place))
            values[place % WAYS] = f.binary("xor", values[place % WAYS], read)
        loop.carry(*values)
    return loop.carried


def _write(f: FunctionWriter, data: Register, size: Register, lanes: int, number: Register) -> None:
    """Write a number into all bytes."""
    blocks, _ = f.divide(size, SWEEP_BYTES)
    value = f.splat(number, lanes)
    with f.loop(0, blocks) as loop:
        base = f.offset(data, "i8", f.multiply(loop.index, SWEEP_BYTES))
        for place in range(SWEEP_BYTES // (4 * lanes)):
            f.store(value, f.offset(base, "i8", 4 * lanes * place))


def _keep(f: FunctionWriter, seen: Sequence[Register], lanes: int, out: Register) -> None:
    """Store what was read, so that LLVM leaves no load out."""
    for place, value in enumerate(seen):
        f.store(value, f.offset(out, "i8", 4 * lanes * place))


def latency_module(target: Target) -> str:
    """Write the module."""
    module = Module(target)
    _chase(module.function("chase", ["ptr", "i64", "ptr"]))
    _chain(module.function("chain", ["i64", "ptr"]))
    return str(module)


def _chase(f: FunctionWriter) -> None:
    start, steps, out = f.parameters
    with f.loop(0, steps, carried=[start]) as loop:
        loop.carry(f.emit("ptr", f"load ptr, {loop.carried[0]}, align 8"))
    f.emit_void(f"store {loop.carried[0]}, {out}, align 8")


def _chain(f: FunctionWriter) -> None:
    steps, out = f.parameters
    factor = f.load("float", out)  # which LLVM must not know
    with f.loop(0, steps, carried=[factor]) as loop:
        loop.carry(f.fma(loop.carried[0], factor, factor))
    f.store(loop.carried[0], out)
