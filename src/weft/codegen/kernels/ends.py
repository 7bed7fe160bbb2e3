"""Take parameters of kernels' functions apart: buffers, tiles, and counts and strides where sizes vary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.codegen.llvm.module import FunctionWriter, Register
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.conv_weight import DepthwiseWeightKernel, WeightGradientKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.recurrent import RecurrentKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.winograd import WinogradKernel

Ended = (
    LoopKernel
    | RowKernel
    | GemmKernel
    | PackKernel
    | AttentionKernel
    | AttentionGradientKernel
    | ScatterKernel
    | ConvKernel
    | PoolKernel
    | WinogradKernel
    | WeightGradientKernel
    | DepthwiseWeightKernel
    | RecurrentKernel
)


def parameter_kinds(kernel: Ended, pointers: Sequence[str]) -> list[str]:
    """List the types of a function's parameters."""
    return [*pointers, "i64", "i64", *["i64"] * (len(kernel.ends) + sum(map(len, _of_dense(kernel))))]


Dimension = tuple[int, int]
"""A dimension of an argument: the argument's number, and that of the dimension."""


def _of_dense(kernel: Ended) -> tuple[Sequence[Dimension], Sequence[Dimension]]:
    """The strides that a kernel is given, and the counts beyond which arguments are not read."""
    if isinstance(kernel, LoopKernel):
        return kernel.pitches, kernel.bounds
    return (kernel.pitches if isinstance(kernel, PoolKernel) else ()), ()


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a kernel's function is given: buffers, the tiles to run, and where loops along dimensions end.

    Of dense arguments also strides, in elements, and how many positions there are to read.
    """

    pointers: list[Register]
    begin: Register
    end: Register
    ends: dict[int, Register]
    pitches: dict[Dimension, Register]
    bounds: dict[Dimension, Register]

    @classmethod
    def of(cls, f: FunctionWriter, kernel: Ended) -> Parameters:
        """Take the parameters of a kernel's function apart."""
        pitched, bounded = _of_dense(kernel)
        count = len(f.parameters) - len(kernel.ends) - len(pitched) - len(bounded)
        *pointers, begin, end = f.parameters[:count]
        rest = iter(f.parameters[count:])
        # In this order; each takes as many as it has names for.
        ends = dict(zip(kernel.ends, rest, strict=False))
        pitches, bounds = (dict(zip(names, rest, strict=False)) for names in (pitched, bounded))
        return cls(pointers, begin, end, ends, pitches, bounds)


def limit(f: FunctionWriter, address: Register, most: int) -> Register:
    """Give how much there is of something, of which a number in memory says how much: at most all."""
    # SAFETY: a limit is an i32 number that lies in memory; whatever it is, nothing beyond what there is is read.
    number = f.convert("sext", f.load("i32", address), "i64")
    return f.minimum(f.maximum(number, f.integer(0)), f.integer(most))


def image_limits(
    f: FunctionWriter, kernel: ConvKernel | PoolKernel | WinogradKernel, limits: Sequence[Register]
) -> tuple[Register, Register]:
    """Give how many rows and columns there are of images: all, or what is in memory where they are limited."""
    given, found = iter(limits), []
    for size, limited in zip(kernel.in_size, kernel.limited, strict=True):
        found.append(limit(f, next(given), size) if limited else f.integer(size))
    return found[0], found[1]


def all_below(f: FunctionWriter, pairs: Iterable[tuple[Register, Register]]) -> Register | None:
    """Tell whether all places are below their ends; None where there are no pairs."""
    found = None
    for place, end in pairs:
        below = f.compare("icmp slt", place, end)
        found = below if found is None else f.binary("and", found, below)
    return found
