"""A pooling of windows -> the kernel that computes it, with every scheduling choice as a field."""

from dataclasses import dataclass
from typing import Literal

from weft.plan.kernels.conv import Images, Window
from weft.plan.kernels.gemm import ELEMENT_BITS
from weft.target import Target

TILE_NUMBERS = 32 * 1024  # numbers that the windows of a tile see, about
MOST_VECTORS = 4


@dataclass(frozen=True)
class PoolSchedule:
    """How a pooling is computed: vectors of `lanes` outputs along channels or columns, `vectors` at a time.

    A line is a row of an output image, of one channel if vectors run along columns; a tile is `tile_lines` lines.
    """

    lanes: int
    vectors: int
    along: Literal["channels", "columns"]
    tile_lines: int


@dataclass(frozen=True)
class PoolKernel:
    """One pooling; arguments are out, the indices if wanted, input, begin, end.

    A mean divides by what its window covers of the image, or with `count_padding` also of the padding, or by
    `divisor`. `adaptive` windows share out the image evenly; then `window` says nothing. Indices are i64, count in a
    plane of the input, and lie as the output does.
    """

    name: str
    element: str
    kind: Literal["max", "mean"]
    images: int
    channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    window: Window
    input: Images
    output: Images
    schedule: PoolSchedule
    indices: bool = False
    count_padding: bool = True
    divisor: int | None = None
    adaptive: bool = False

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
