"""Cut calls of which small sizes need a part into parts that lanes are given in turn: each has some of any part.

Tiles follow the first dimensions of a kernel. Where the first one that has more than one place ends, its first places
alone are needed, and lanes take turns at those. Where only later dimensions end, all of its places are needed, and
tiles are cut evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from weft.plan.form.plan import KernelCall
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.winograd import WinogradKernel

TURNS, LATER_TURNS = 4, 2  # of single parts, and of as many parts as all before, again and again
MOST_UNITS, EVEN_UNITS = 32, 16

OUTER: Mapping[type[Kernel], Callable[[Any], tuple[int, ...]]] = MappingProxyType(
    {
        LoopKernel: lambda kernel: kernel.sizes,
        RowKernel: lambda kernel: kernel.outer_rows,
        GemmKernel: lambda kernel: kernel.batch,
        PackKernel: lambda kernel: kernel.batch,
        AttentionKernel: lambda kernel: kernel.sizes.batch,
        AttentionGradientKernel: lambda kernel: kernel.sizes.batch,
        **dict.fromkeys((ConvKernel, PoolKernel, WinogradKernel), lambda kernel: (kernel.images,)),
    }
)
"""The first dimensions of kernels, which tiles follow."""


def parts_in_turns(call: KernelCall, lanes: int) -> list[float]:
    """The parts of a call, the first of it first."""
    return in_turns(_units(call), lanes)


def _units(call: KernelCall) -> int:
    """The parts of a call that are not cut."""
    dimensions: tuple[int, ...] = getattr(call.kernel, "ends", ())
    sizes = OUTER.get(type(call.kernel), lambda _: ())(call.kernel)
    first = next((at for at, size in enumerate(sizes) if size > 1), len(sizes))
    if not dimensions or dimensions == (first,):  # the first tiles are needed, and no others
        units = MOST_UNITS
    else:
        pairs = zip(dimensions, call.ends, strict=True)
        units = next((end.most for dimension, end in pairs if dimension == first), EVEN_UNITS)
    return min(units, call.kernel.tile_count)


def in_turns(units: int, lanes: int) -> list[float]:
    """The parts of so many units, none of which is cut, if there are enough."""
    turns = max(min(TURNS, units // lanes), 1)
    if turns * lanes > units:
        return [1 / lanes] * lanes
    found = [1] * (turns * lanes)
    while (done := sum(found)) < units:
        more = min(done, units - done)
        count = min(LATER_TURNS * lanes, more)
        found += [(at + 1) * more // count - at * more // count for at in range(count)]
    return [part / units for part in found]
