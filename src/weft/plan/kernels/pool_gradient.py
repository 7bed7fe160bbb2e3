"""The gradient of a pooling whose windows may overlap -> the kernel that computes it.

Each number is the sum of what comes back from the windows that see its place, in the order of the windows: nothing is
added to in turn, so lanes may share the rows of an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from weft.plan.kernels.box import box
from weft.plan.kernels.cycles import MEMORY_CYCLES, STRIDED
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.gemm import ELEMENT_BITS
from weft.plan.kernels.images import Images, Window
from weft.plan.kernels.kernel import Boxes, Kernel, by
from weft.plan.kernels.pool import INDEX_BYTES, MOST_VECTORS, TILE_NUMBERS, PoolSchedule, whole_images
from weft.target import Target


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
    window: Window
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
