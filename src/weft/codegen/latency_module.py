"""Write the module that measures latencies: each load, and each multiply-add, waits for the one before.

`void chase(start*, i64 steps, out*)` follows pointers, each of which lies where the one before points to.
`void chain(i64 steps, out*)` does one scalar multiply-add after another.
"""

from weft.codegen.llvm.module import FunctionWriter, Module
from weft.target import Target


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
