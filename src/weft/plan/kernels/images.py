"""Place batches of images in memory, and say what a sliding window sees of them."""

from dataclasses import dataclass
from math import prod

from weft.plan.kernels.gemm import EpilogueOperand
from weft.plan.kernels.kernel import ByteBox, Range, box, cut_range


@dataclass(frozen=True)
class Images:
    """Where a batch of images lies: strides in elements from image to image, row to row and so on, and the start."""

    image: int
    row: int
    column: int
    channel: int
    offset: int = 0

    def pixels(self, sizes: tuple[int, int, int], pixels: Range, channels: Range, item: int) -> ByteBox | None:
        """Give the box of some pixels, counted through all images of these numbers of images, rows and columns."""
        offset, steps = cut_range(sizes, (self.image, self.row, self.column), *pixels)
        offset += self.offset + channels[0] * self.channel
        return box(offset, [*steps, (self.channel, channels[1] - channels[0])], item)

    def part(self, ranges: tuple[Range, Range, Range], channels: Range, item: int) -> ByteBox | None:
        """Give the box of ranges of images, rows, columns and channels."""
        strides = (self.image, self.row, self.column, self.channel)
        spans = list(zip(strides, (*ranges, channels), strict=True))
        offset = self.offset + sum(stride * first for stride, (first, _) in spans)
        return box(offset, [(stride, last - first) for stride, (first, last) in spans], item)

    def has_pixels_of(self, operand: EpilogueOperand, sizes: tuple[int, int, int]) -> bool:
        """Tell whether an operand's rows, counted through all images, are where the pixels of these images are."""
        strides = (self.image, self.row, self.column)
        counted = (operand.row * prod(sizes[place + 1 :]) for place in range(len(sizes)))
        same = all(size == 1 or one == other for size, one, other in zip(sizes, strides, counted, strict=True))
        return same and self.offset == 0 and operand.column == self.channel == 1


@dataclass(frozen=True)
class ImageWindow:
    """What a convolution or pooling sees of an image, as (vertical, horizontal)."""

    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)


Limited = tuple[bool, bool]
"""Whether rows and columns of images end where an i32 number in memory says: beyond is outside, as beside an image."""
UNLIMITED: Limited = (False, False)
LIMIT_BOX = ByteBox(0, 4, (), 4)


def out_size(in_size: tuple[int, int], window: ImageWindow) -> tuple[int, int]:
    """Give the rows and columns of what a window makes of an image."""
    rows, columns = (
        max(0, (length + 2 * padding - dilation * (size - 1) - 1) // stride + 1)
        for length, size, stride, padding, dilation in zip(
            in_size, window.size, window.stride, window.padding, window.dilation, strict=True
        )
    )
    return rows, columns


def seen_places(in_size: tuple[int, int], out: tuple[int, int], window: ImageWindow) -> float:
    """Count the places of a window that are inside the image, on average over the output pixels."""
    seen = 1.0
    for length, count, size, stride, padding, dilation in zip(
        in_size, out, window.size, window.stride, window.padding, window.dilation, strict=True
    ):
        starts = [pixel * stride - padding for pixel in range(count)]
        inside = sum(0 <= start + tap * dilation < length for start in starts for tap in range(size))
        seen *= inside / max(count, 1)
    return seen


def window_sees_outside(in_size: tuple[int, int], out: tuple[int, int], window: ImageWindow) -> bool:
    """Tell whether a window at some output pixel reaches over an edge of the image."""
    return any(
        padding > 0 or (count - 1) * stride + (size - 1) * dilation - padding >= length
        for length, count, size, stride, padding, dilation in zip(
            in_size, out, window.size, window.stride, window.padding, window.dilation, strict=True
        )
    )
