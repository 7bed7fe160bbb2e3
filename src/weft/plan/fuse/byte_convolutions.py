"""Make kernels of convolutions of integers of 8 bits: images and weights are words of four channels.

Channels lie side by side, four of them in a word. So such a convolution is one of words, with a quarter of the
channels, in which the product of two words is the sum of four products; all else is as for floats.

    image   (n, h, w, 4 c) of u8   as   (n, h, w, c) of words
    weight  (o, r, s, 4 c) of i8   as   (o, r, s, c) of words
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from weft.ir.graph import Value
from weft.plan.fuse.convolutions import packed_weights, weight_order
from weft.plan.fuse.fusion import Fusion, tensor_type
from weft.plan.fuse.image_layout import (
    channels_last,
    channels_last_strides,
    images_of,
    pair,
    pixel_steps,
    writes_images,
)
from weft.plan.fuse.matmul import PendingKernel
from weft.plan.kernels.conv import ConvKernel, ConvSizes, choose_byte_schedule, pack_conv_weights
from weft.plan.kernels.expression import SHORT_FLOATS
from weft.plan.kernels.gemm import Epilogue
from weft.plan.kernels.images import ImageWindow
from weft.plan.regions.lazy import Computed, Lazy, Leaf
from weft.plan.regions.region import BYTES_OF_A_WORD
from weft.plan.regions.window import Window, in_order_of

WORDS = "i32"


def convolve_bytes(fusion: Fusion, value: Value) -> Lazy:
    """A convolution of images of u8 with weights of i8, whose sums are integers of 32 bits."""
    images, weight = _images(fusion, value), _weight(fusion, value)
    shape, groups = tensor_type(value).shape, value.attributes["groups"]
    count, channels, *in_size = images.window.shape
    window = ImageWindow(
        pair(weight.window.shape[2:]), *(pair(value.attributes[name]) for name in ("stride", "padding", "dilation"))
    )
    dense = images.window.strides[3] == weight.window.shape[1]
    sizes = ConvSizes(
        WORDS, count, channels // groups, shape[1] // groups, pair(in_size), window, dense=dense and groups == 1
    )
    home = in_order_of(shape, channels_last_strides(shape))
    plain_kernel = ConvKernel(
        "convolution", WORDS, count, groups, sizes.in_channels, sizes.out_channels, sizes.in_size, pair(shape[2:]),
        window, images_of(images.window), images_of(home), Epilogue(),
        choose_byte_schedule(sizes, fusion.assembly.target), of_bytes=True,
    )  # fmt: skip
    pack = pack_conv_weights(plain_kernel, fusion.assembly.name("pack"), weight_order(plain_kernel, weight, 0))
    packed = packed_weights(fusion, plain_kernel, pack, weight)

    def emit(out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        name = fusion.assembly.name("convolution")
        kernel = replace(plain_kernel, name=name, output=images_of(out.window), epilogue=epilogue)
        reads = (fusion.assembly.location(images), packed, *map(fusion.assembly.location, inputs))
        fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)

    steps, shorter = partial(pixel_steps, shape), ("f32", "u8", *SHORT_FLOATS)
    made = PendingKernel(fusion, home, WORDS, emit, steps, shape[1], shorter=shorter)
    made.writes = writes_images
    return made.lazy()


def _images(fusion: Fusion, value: Value) -> Leaf:
    """The images in memory, as words."""
    images = fusion.assembly.in_memory(_bytes(fusion.operand(value)))
    if not _is_in_words(images.window):
        images = channels_last(fusion, images)
    return _in_words(images)


def _weight(fusion: Fusion, value: Value) -> Leaf:
    """The weights in memory with their channels side by side, as words."""
    lazy = _bytes(fusion.operand(value, 1))
    home = in_order_of(lazy.shape, channels_last_strides(lazy.shape))
    if isinstance(lazy.node, Leaf) and fusion.is_weight(lazy.node):
        return _in_words(fusion.prepared(lazy, home))
    out = fusion.arena(home, lazy.dtype)
    fusion.assembly.store(lazy, out)
    return _in_words(out)


def _bytes(lazy: Lazy) -> Lazy:
    """What is widened to 32 bits."""
    node = lazy.node
    return Lazy(lazy.shape, node.operands[0]) if isinstance(node, Computed) and node.op == "cast" else lazy


def _is_in_words(window: Window) -> bool:
    image, channel, row, column = window.strides
    return channel == 1 and not any(step % BYTES_OF_A_WORD for step in (image, row, column, window.offset))


def _in_words(leaf: Leaf) -> Leaf:
    count, channels, *size = leaf.window.shape
    image, _, row, column = leaf.window.strides
    strides = (image // BYTES_OF_A_WORD, 1, row // BYTES_OF_A_WORD, column // BYTES_OF_A_WORD)
    return replace(leaf, window=Window((count, channels // BYTES_OF_A_WORD, *size), strides, leaf.window.offset))
