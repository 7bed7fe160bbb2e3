"""How images lie in memory: inside of regions with their channels side by side."""

from __future__ import annotations

from weft.ir.graph import Value
from weft.plan.epilogue import Operand
from weft.plan.fusion import Fusion
from weft.plan.kernel_conv import Images
from weft.plan.lazy import Lazy, Leaf
from weft.plan.window import Window, in_order_of


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


def pixel_steps(shape: tuple[int, ...], seen: Window) -> Operand | None:
    """How a kernel that makes images of this shape reads a window of them: by pixel and channel; None if it cannot."""
    image, channel, row, column = seen.strides
    count, channels, height, width = shape
    per_pixel = column if width > 1 else row if height > 1 else image
    uneven = (height > 1 and row != width * per_pixel) or (count > 1 and image != height * width * per_pixel)
    if uneven or (channel not in (0, 1) and channels > 1):
        return None
    return Operand((), per_pixel, channel)
