"""Share out what a call of some sizes needs of a kernel: each lane has an equal part of its tiles, found when it runs.

Tiles follow some dimensions of a kernel in order, the last one fastest. Where a call needs the first places alone of
some of these, its tiles are those of the first steps along them. Counted in order, each lane does as much as another:
as many tiles, but that those of a last step which has few places count for less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
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
from weft.plan.kernels.recurrent import RecurrentKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.walk import Blocks, partial_heights
from weft.plan.kernels.winograd import SQUARE, WinogradKernel

Follows = tuple[int | None, int, int]  # a dimension that may end, the steps along it, and the least places of a step


@dataclass(frozen=True, slots=True)
class TileAxis:
    """A dimension that tiles follow: how many steps there are, the least places of one, and which end cuts it."""

    count: int
    step: int = 1
    end: int | None = None
    varies: bool = False  # whether a step of fewer places is less work

    def needed(self, ends: Sequence[int]) -> int:
        """How many steps are needed where loops end so; a step too many does no harm."""
        return self.count if self.end is None else min(self.count, -(-ends[self.end] // self.step))

    @property
    def fixed(self) -> int:
        """What a step takes beside its places, in places: what each reads however few they are."""
        return self.step // 2 if self.varies else 0

    @property
    def work(self) -> int:
        """What a whole step takes."""
        return self.step + self.fixed if self.varies else 1

    def last(self, ends: Sequence[int]) -> int:
        """What the last step takes that is needed."""
        if not self.varies or self.end is None:
            return 1
        places = min(ends[self.end], self.count * self.step) - (self.needed(ends) - 1) * self.step
        return next(height for height in self.heights if places <= height) + self.fixed

    @property
    def heights(self) -> Sequence[int]:
        """As how many places a last step of fewer is computed."""
        return [height for height in partial_heights(self.step) if height < self.step] + [self.step]


def tile_axes(call: KernelCall) -> tuple[TileAxis, ...]:
    """The dimensions that a call's tiles follow, the outermost first; none where all of its tiles are always needed."""
    follows, dimensions = FOLLOWED.get(type(call.kernel)), getattr(call.kernel, "ends", ())
    if follows is None or not call.ends:
        return ()
    places = {dimension: place for place, dimension in enumerate(dimensions)}
    found: list[TileAxis] = []
    inside = 1
    for dimension, count, step in reversed(follows(call.kernel)):
        end = None if dimension is None else places.get(dimension)
        found.insert(0, TileAxis(count, step, end, varies=inside > 1 and step > 1 and end is not None))
        inside *= count
    return tuple(found) if any(axis.end is not None and axis.count > 1 for axis in found) else ()


def is_shared(call: KernelCall) -> bool:
    """Whether it depends on a call's sizes which tiles are needed."""
    return call.needed is not None or bool(tile_axes(call))


def first_tile(axes: Sequence[TileAxis], ends: Sequence[int], share: tuple[int, int], tiles: int) -> int:
    """Where a share begins, of so many: the tile before which as much is done as by the shares before it."""
    number, of = share
    if number in (0, of):
        return tiles if number else 0
    works = [(axis.needed(ends) - 1) * axis.work + axis.last(ends) for axis in axes]
    rest, flat = prod(works) * number // of, 0
    for place, axis in enumerate(axes):
        last, whole = max(axis.needed(ends) - 1, 0), axis.work * max(prod(works[place + 1 :]), 1)
        step = min(rest // whole, last)
        rest = (rest - step * whole) // (axis.last(ends) if step == last else axis.work)
        flat = flat * axis.count + step
    return flat * tiles // prod(axis.count for axis in axes)


def _of_loop(kernel: LoopKernel) -> list[Follows]:
    rows = [(place, size, 1) for place, size in enumerate(kernel.sizes[:-1])]
    if rows and kernel.line == kernel.sizes[-2]:
        rows[-1] = (len(rows) - 1, kernel.row_tiles, kernel.schedule.row_tile)
    return [*rows, (len(rows), kernel.column_tiles, kernel.schedule.column_tile)]


def _of_rows(kernel: RowKernel) -> list[Follows]:
    rows = [(place, size, 1) for place, size in enumerate(kernel.outer_rows)]
    return [*rows, (len(rows) if kernel.schedule.along_rows else None, kernel.lane_tiles, kernel.schedule.lane_tile)]


def _of_product(kernel: GemmKernel) -> list[Follows]:
    walk, sides = kernel.walk, len(kernel.batch)
    return [
        *_of_batch(kernel.batch),
        (sides, walk.tile_rows, _least(walk.row_blocks) * walk.tile_row_blocks),
        (sides + 1, walk.tile_columns, _least(walk.panels) * walk.lanes * walk.tile_panels),
    ]


def _of_images(kernel: ConvKernel) -> list[Follows]:
    walk, (height, width) = kernel.walk, kernel.out_size
    blocks, least = walk.row_blocks.count, _least(walk.row_blocks)
    pixels: dict[str, list[Follows]] = {
        "row": [(0, kernel.images, 1), (1, height, 1), (2, blocks, least)],
        "rows": [(0, kernel.images, 1), (1, height, 1), (2, width, 1)],
        "images": [(0, blocks, least), (1, height, 1), (2, width, 1)],
    }
    return [(None, walk.matrices, 1), *pixels[kernel.schedule.pixels_of], (None, walk.tile_columns, 1)]


def _of_pool(kernel: PoolKernel) -> list[Follows]:
    channels = kernel.channels if kernel.schedule.along == "columns" else 1
    return [(0, kernel.images, 1), (None, channels, 1), (1, kernel.out_size[0], 1)]


def _of_attention(kernel: AttentionKernel) -> list[Follows]:
    blocks = kernel.row_blocks
    return [*_of_batch(kernel.sizes.batch), (len(kernel.sizes.batch), blocks.count, _least(blocks))]


def _of_batch(batch: Sequence[int]) -> list[Follows]:
    return [(place, size, 1) for place, size in enumerate(batch)]


def _least(blocks: Blocks) -> int:
    return min(blocks.sizes, default=1)


FOLLOWED: Mapping[type[Kernel], Callable[[Any], list[Follows]]] = MappingProxyType(
    {
        LoopKernel: _of_loop,
        RowKernel: _of_rows,
        GemmKernel: _of_product,
        ConvKernel: _of_images,
        PoolKernel: _of_pool,
        WinogradKernel: lambda kernel: [
            (0, kernel.images, 1),
            *((place, count, SQUARE) for place, count in enumerate(kernel.squares, 1)),
        ],
        AttentionKernel: _of_attention,
        AttentionGradientKernel: lambda kernel: _of_batch(kernel.sizes.batch),
        PackKernel: lambda kernel: [*_of_batch(kernel.batch), (None, kernel.panels.count, 1)],
        ScatterKernel: lambda kernel: [(len(kernel.expression.sizes) - 1, kernel.tile_count, kernel.column_tile)],
        RecurrentKernel: lambda kernel: [(0, kernel.tile_count, 1)],
    }
)
"""What the tiles of each kind follow. Tiles of other kinds that end are of no dimension that does."""
