"""Lay images out in memory: inside of regions with their channels side by side."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir.graph import Value
from weft.plan.fuse.fusion import Fusion
from weft.plan.kernels.gemm import EpilogueOperand
from weft.plan.kernels.images import Images
from weft.plan.regions.lazy import FixedNumber, Lazy, Leaf, Window, in_order_of


def channels_last(fusion: Fusion, images: Leaf) -> Leaf:
    """The same images with their channels side by side; all that read them so share one copy."""
    key = images.source.buffer, images.window
    if key not in fusion.copies:
        out = fusion.arena(in_order_of(images.window.shape, channels_last_strides(images.window.shape)), images.dtype)
        fusion.assembly.store_by_loop(Lazy(images.window.shape, images), out)
        fusion.copies[key] = out
    return fusion.copies[key]


def side_by_side(fusion: Fusion, value: Value, index: int = 0) -> Leaf:
    """The images that an operand is, with channels side by side and nothing between them.

    What is put into memory for this is read there by all that follows: both gradients, and that of the bias.
    """
    given, lazy = value.operands[index], fusion.operand(value, index)
    images = fusion.assembly.in_memory(lazy)
    if images.window.strides != channels_last_strides(images.window.shape):
        images = channels_last(fusion, images)
    if not isinstance(lazy.node, Leaf):
        fusion.lazies[given] = Lazy(lazy.shape, images)
    return images


@dataclass(frozen=True)
class Border:
    """Rows above and below images, and columns left and right of them."""

    top: int
    bottom: int
    left: int
    right: int


def bordered(fusion: Fusion, value: Value, index: int, border: Border) -> Leaf:
    """The images that an operand is, with channels side by side, inside of a border of zeros; all of it."""
    given, lazy = value.operands[index], fusion.operand(value, index)
    count, channels, height, width = lazy.shape
    shape = (count, channels, border.top + height + border.bottom, border.left + width + border.right)
    out = fusion.arena(in_order_of(shape, channels_last_strides(shape)), lazy.dtype)
    (_, _, bottom, right), below, behind = shape, border.top + height, border.left + width
    for first, end in (
        ((0, 0), (border.top, right)),
        ((below, 0), (bottom, right)),
        ((border.top, 0), (below, border.left)),
        ((border.top, behind), (below, right)),
    ):
        strip = Leaf(out.source, _part(out.window, first, end), out.dtype)
        if strip.window.size:
            fusion.assembly.store_by_loop(Lazy(strip.window.shape, FixedNumber(0.0, lazy.dtype)), strip)
    inside = Leaf(out.source, _part(out.window, (border.top, border.left), (below, behind)), out.dtype)
    fusion.assembly.store(lazy, inside)
    if not isinstance(lazy.node, Leaf) or lazy.node.source.pending is not None:
        fusion.lazies[given] = Lazy(lazy.shape, inside)
    return out


def _part(window: Window, first: tuple[int, int], behind: tuple[int, int]) -> Window:
    """Some rows and columns of images."""
    return window.sliced((0, 0, *first), (*window.shape[:2], *behind), (1, 1, 1, 1))


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of images whose channels lie side by side."""
    _, channels, height, width = shape
    return (height * width * channels, 1, width * channels, channels)


def images_of(window: Window) -> Images:
    """Where the images of a window lie."""
    image, channel, row, column = window.strides
    return Images(image, row, column, channel)


def pair(sizes: object) -> tuple[int, int]:
    """A size down and across; one number, or that of a single dimension, is both."""
    assert isinstance(sizes, (list, tuple))
    return (int(sizes[0]), int(sizes[-1]))


def pixel_steps(shape: tuple[int, ...], seen: Window) -> EpilogueOperand | None:
    """How a kernel that makes images of this shape reads a window of them: by pixel and channel; None if it cannot."""
    image, channel, row, column = seen.strides
    count, channels, height, width = shape
    per_pixel = column if width > 1 else row if height > 1 else image
    uneven = (height > 1 and row != width * per_pixel) or (count > 1 and image != height * width * per_pixel)
    if uneven or (channel not in (0, 1) and channels > 1):
        return None
    return EpilogueOperand((), per_pixel, channel)


def writes_images(window: Window) -> bool:
    """Whether a kernel that makes images can write so: with channels side by side, and any steps between pixels."""
    return window.strides[1] == 1 or window.shape[1] == 1
