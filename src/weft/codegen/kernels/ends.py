"""Take parameters of kernels' functions apart: buffers, tiles, and the counts at which loops end where sizes vary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.reduce import RowKernel

Ended = LoopKernel | RowKernel | GemmKernel | PackKernel | AttentionKernel


def parameter_kinds(kernel: Ended, pointers: Sequence[str]) -> list[str]:
    """List the types of a function's parameters."""
    return [*pointers, "i64", "i64", *["i64"] * len(kernel.ends)]


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a kernel's function is given: buffers, the tiles to run, and where loops along dimensions end."""

    pointers: list[Register]
    begin: Register
    end: Register
    ends: dict[int, Register]

    @classmethod
    def of(cls, f: FunctionWriter, kernel: Ended) -> Parameters:
        """Take the parameters of a kernel's function apart."""
        count = len(f.parameters) - len(kernel.ends)
        *pointers, begin, end = f.parameters[:count]
        return cls(pointers, begin, end, dict(zip(kernel.ends, f.parameters[count:], strict=True)))


def all_below(f: FunctionWriter, pairs: Iterable[tuple[Register, Register]]) -> Register | None:
    """Tell whether all places are below their ends; None where there are no pairs."""
    found = None
    for place, end in pairs:
        below = f.compare("icmp slt", place, end)
        found = below if found is None else f.binary("and", found, below)
    return found
