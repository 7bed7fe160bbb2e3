"""The gradient of a pooling whose windows may overlap -> the kernel that computes it.

Each number is the sum of what comes back from the windows that see its place, in the order of the windows: nothing is
added to in turn, so lanes may share the rows of an image.
"""

from dataclasses import dataclass
from typing import Literal

from weft.plan.kernels.conv import Images, Window
from weft.plan.kernels.gemm import ELEMENT_BITS
from weft.plan.kernels.pool import MOST_VECTORS, TILE_NUMBERS, PoolSchedule
from weft.target import Target


@dataclass(frozen=True)
class PoolGradientKernel:
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


def choose_pool_gradient_schedule(
    element: str, channels: int, columns: int, layout: Images, target: Target
) -> PoolSchedule:
    """Choose how the gradient of images with rows of so many columns is computed."""
    along: Literal["channels", "columns"] = "channels" if layout.channel == 1 and channels > 1 else "columns"
    lanes = target.lanes(ELEMENT_BITS[element])
    vectors = max(1, min(MOST_VECTORS, channels // lanes)) if along == "channels" else 1
    line = max(columns, 1) * (channels if along == "channels" else 1)
    return PoolSchedule(lanes, vectors, along, max(1, TILE_NUMBERS // max(line, 1)))
