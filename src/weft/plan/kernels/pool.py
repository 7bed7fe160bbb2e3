"""Define the kernels of pooling and of its gradient, and choose how they run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from weft.plan.kernels.expression import DTYPE_BYTES, MEMORY_CYCLES, STRIDED
from weft.plan.kernels.gemm import ELEMENT_BITS
from weft.plan.kernels.images import LIMIT_BOX, UNLIMITED, Images, ImageWindow, Limited
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, Range, box, by, cut_range
from weft.target import Target

TILE_NUMBERS = 32 * 1024  # numbers that the windows of a tile see, about
MOST_VECTORS = 4
INDEX_BYTES = DTYPE_BYTES["i64"]


@dataclass(frozen=True)
class PoolSchedule:
    """How a pooling is computed: vectors of `lanes` outputs along channels or columns, `vectors` at a time.

    A line is a row of an output image, of one channel if vectors run along columns; a tile is `tile_lines` lines.
    """

    lanes: int
    vectors: int
    along: Literal["channels", "columns"]
    tile_lines: int

    def written(
        self, places: Images, sizes: tuple[int, int, int, int], tiles: Range
    ) -> tuple[int, list[tuple[int, int]], Range]:
        """Say where some tiles of lines write, as an offset and steps, and of which images they are.

        Sizes are of images, channels, rows and columns; lines are cut to those that there are.
        """
        images, channels, height, width = sizes
        per_image = height if self.along == "channels" else channels * height
        first, last = tiles[0] * self.tile_lines, min(tiles[1] * self.tile_lines, images * per_image)
        if self.along == "channels":
            offset, steps = cut_range((images, height), (places.image, places.row), first, last)
            steps = [*steps, (places.channel, channels)]
        else:
            strides = (places.image, places.channel, places.row)
            offset, steps = cut_range((images, channels, height), strides, first, last)
        return places.offset + offset, [*steps, (places.column, width)], (first // per_image, -(-last // per_image))


@dataclass(frozen=True)
class PoolKernel(Kernel):
    """One pooling; arguments are out, the indices if wanted, input, limits, begin, end, ends.

    A mean divides by what its window covers of the image, or with `count_padding` also of the padding, or by
    `divisor`. `adaptive` windows share out the image evenly; then `window` says nothing. Indices are i64, count in a
    plane of the input, and lie as the output does. Of `limited` rows and columns of the input an argument has how many
    there are: what is beyond is no part of a maximum, and 0 in a mean. `ends` are among the dimensions of images, rows
    and columns of the output. `pitches` are strides that the caller gives: of images, rows, columns or channels (0 to
    3) of an argument.
    """

    name: str
    element: str
    kind: Literal["max", "mean"]
    images: int
    channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    window: ImageWindow
    input: Images
    output: Images
    schedule: PoolSchedule
    indices: bool = False
    count_padding: bool = True
    divisor: int | None = None
    adaptive: bool = False
    limited: Limited = UNLIMITED
    ends: tuple[int, ...] = ()
    pitches: tuple[tuple[int, int], ...] = ()

    @property
    def lines(self) -> int:
        """Count the lines."""
        rows = self.images * self.out_size[0]
        return rows * self.channels if self.schedule.along == "columns" else rows

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        numbers = self.images * self.channels * self.out_size[0] * self.out_size[1]
        return -(-self.lines // self.schedule.tile_lines) if numbers else 0

    @property
    def tile_sizes(self) -> None:
        """All tiles are as many lines but the last."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles to load what windows see."""
        seen = prod(self.in_size) / max(prod(self.out_size), 1) if self.adaptive else prod(self.window.size)
        numbers = self.images * self.channels * prod(self.out_size)
        return numbers * seen * MEMORY_CYCLES * (2 if self.indices else 1) / self.schedule.lanes

    @property
    def summary(self) -> str:
        """Say what is taken of windows, and the images that come out."""
        return f"{self.kind} of {self.images}x{self.channels} images of {by(*self.out_size)}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give the lines written, and the whole images that they are made of."""
        element, sizes = DTYPE_BYTES[self.element], (self.images, self.channels, *self.out_size)
        offset, steps, images = self.schedule.written(self.output, sizes, (begin, end))
        written = [box(offset, steps, item) for item in (element, *([INDEX_BYTES] if self.indices else []))]
        limits = (LIMIT_BOX for limit in self.limited if limit)
        return (*written, whole_images(self.input, images, (self.channels, *self.in_size), element), *limits)

    def renamed(self, name: str) -> PoolKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: a window is read again for the next output."""


def choose_pool_schedule(
    element: str, channels: int, sizes: tuple[tuple[int, int], tuple[int, int]], layout: Images, target: Target
) -> PoolSchedule:
    """Choose how a pooling from one size of image to another is computed."""
    (rows, columns), (out_rows, _) = sizes
    along: Literal["channels", "columns"] = "columns" if layout.column == 1 else "channels"
    seen = max(1, rows * columns // max(out_rows, 1)) * (channels if along == "channels" else 1)
    lanes = target.lanes(ELEMENT_BITS[element])
    vectors = max(1, min(MOST_VECTORS, channels // lanes)) if along == "channels" else 1
    return PoolSchedule(lanes, vectors, along, max(1, TILE_NUMBERS // max(seen, 1)))


def whole_images(where: Images, images: Range, sizes: tuple[int, int, int], item: int) -> ByteBox | None:
    """Give the box of some images, of so many channels, rows and columns each."""
    channels, rows, columns = sizes
    return where.part((images, (0, rows), (0, columns)), (0, channels), item)


# The gradient: each number is the sum of what comes back from the windows that see its place, which may overlap, in the
# order of the windows. Nothing is added to in turn, so lanes may share the rows of an image.


@dataclass(frozen=True)
class PoolGradientKernel(Kernel):
    """One gradient; arguments are out, gradient of the pooling's output, its indices if `indices`, begin, end.

    `in_size` is the size of the images that were pooled, and of those that come out; a line of the schedule is a row of
    such an image. With `indices` (i64, counted in a plane of the input) a place gets what the windows give that took
    it; without them it gets what all windows give that see it.
    """

    name: str
    element: str
    images: int
    channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    window: ImageWindow
    output: Images
    of_output: Images
    indices: Images | None
    schedule: PoolSchedule

    @property
    def lines(self) -> int:
        """Count the lines."""
        rows = self.images * self.in_size[0]
        return rows * self.channels if self.schedule.along == "columns" else rows

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        numbers = self.images * self.channels * self.in_size[0] * self.in_size[1]
        return -(-self.lines // self.schedule.tile_lines) if numbers else 0

    def reach(self, axis: int) -> int:
        """Count the places from the first that a window sees along an axis to the last."""
        return (self.window.size[axis] - 1) * self.window.dilation[axis] + 1

    def most_windows(self, axis: int) -> int:
        """Count the windows that may see one place along an axis."""
        return -(-self.reach(axis) // self.window.stride[axis])

    @property
    def tile_sizes(self) -> None:
        """All tiles are as many lines but the last."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles to load what comes back from windows."""
        seen = self.most_windows(0) * self.most_windows(1)
        numbers = self.images * self.channels * prod(self.in_size)
        work = MEMORY_CYCLES * (3 if self.indices else 1) * (STRIDED if self.schedule.along == "columns" else 1)
        return numbers * seen * work / self.schedule.lanes

    @property
    def summary(self) -> str:
        """Say the images that come out."""
        return f"{self.images}x{self.channels} images of {by(*self.in_size)}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give the lines written, and the whole images of what comes back from windows."""
        element, sizes = DTYPE_BYTES[self.element], (self.images, self.channels, *self.in_size)
        offset, steps, images = self.schedule.written(self.output, sizes, (begin, end))
        given = [(self.of_output, element), *([(self.indices, INDEX_BYTES)] if self.indices else [])]
        read = (whole_images(where, images, (self.channels, *self.out_size), item) for where, item in given)
        return (box(offset, steps, element), *read)

    def renamed(self, name: str) -> PoolGradientKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: what comes back from a window is read again for the next place."""


def choose_pool_gradient_schedule(
    element: str, channels: int, columns: int, layout: Images, target: Target
) -> PoolSchedule:
    """Choose how the gradient of images with rows of so many columns is computed."""
    along: Literal["channels", "columns"] = "channels" if layout.channel == 1 and channels > 1 else "columns"
    lanes = target.lanes(ELEMENT_BITS[element])
    vectors = max(1, min(MOST_VECTORS, channels // lanes)) if along == "channels" else 1
    line = max(columns, 1) * (channels if along == "channels" else 1)
    return PoolSchedule(lanes, vectors, along, max(1, TILE_NUMBERS // max(line, 1)))
