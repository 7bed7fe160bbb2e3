"""A kernel -> what part of its work is done before each of its tiles: those at the edges may be smaller.

Where tiles are few, that decides what lanes that share a kernel get: of two tiles, one may be three times the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from weft.plan.form.plan import Kernel
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.blocks import Blocks
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.conv_weight import WeightGradientKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.reduce import RowKernel

MOST_TILES = 256  # with more, those at an edge are nothing
Sizes = Sequence[int]
Grid = tuple[Sizes, Sizes]  # tiles above each other, each as high, and side by side, each as wide


def work_before(kernel: Kernel) -> Sequence[float] | None:
    """Give the part of the work before each tile, and 1 at the end; None where all tiles count alike."""
    find = GRIDS.get(type(kernel))
    if find is None or not 1 < kernel.tile_count <= MOST_TILES:
        return None
    down, across = find(kernel)
    if _is_even(down) and _is_even(across):
        return None
    sizes = [height * width for height in down for width in across] * (kernel.tile_count // (len(down) * len(across)))
    total = sum(sizes)
    return [0.0, *(size / total for size in accumulate(sizes))]


def _is_even(sizes: Sizes) -> bool:
    return min(sizes) == max(sizes)


def _cut(total: int, most: int) -> Sizes:
    whole, rest = divmod(total, most)
    return [most] * whole + [rest] * bool(rest)


def _grouped(blocks: Blocks, times: int, group: int) -> Sizes:
    """Give the length of each group of so many blocks, of a length that is cut so many times."""
    sizes = ([blocks.size] * blocks.large + [blocks.size - 1] * blocks.small) * times
    return [sum(sizes[first : first + group]) for first in range(0, len(sizes), group)]


def _walk(kernel: GemmKernel | ConvKernel | WeightGradientKernel) -> Grid:
    walk = kernel.walk
    # Where a block of rows is visited several times a group of visits is taken for one of blocks.
    down = _grouped(walk.row_blocks, walk.lines * walk.visits, walk.tile_row_blocks)
    return down, _grouped(walk.panels, 1, walk.tile_panels)


def _loop(kernel: LoopKernel) -> Grid:
    return _cut(kernel.line, kernel.schedule.row_tile), _cut(kernel.columns, kernel.schedule.column_tile)


def _rows(kernel: RowKernel) -> Grid:
    return _cut(prod(kernel.outer_rows), kernel.schedule.row_tile), _cut(kernel.lane_rows, kernel.schedule.lane_tile)


def _attention(kernel: AttentionKernel) -> Grid:
    blocks = kernel.row_blocks
    seen = [kernel.seen(block) * (blocks.start(block + 1) - blocks.start(block)) for block in range(blocks.count)]
    return seen, (1,)


# Kernels are of many classes without a common one; each row's function takes its own. All tiles of others count alike.
GRIDS: dict[type, Callable[[Any], Grid]] = {
    GemmKernel: _walk,
    ConvKernel: _walk,
    WeightGradientKernel: _walk,
    LoopKernel: _loop,
    RowKernel: _rows,
    AttentionKernel: _attention,
}
