"""Gradients of convolutions -> kernels; what is between them and the forward's stays in the layout of kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from weft.ir.graph import Value
from weft.plan.form.plan import Location
from weft.plan.fuse.conv_gradient import InputGradient, border_for_few_channels, input_gradient
from weft.plan.fuse.convolutions import moved, packed_weights
from weft.plan.fuse.fusion import Fusion, dtype_of, tensor_type
from weft.plan.fuse.image_layout import (
    Border,
    bordered,
    channels_last_strides,
    images_of,
    pair,
    pixel_steps,
    side_by_side,
    writes_images,
)
from weft.plan.fuse.products import Product
from weft.plan.kernels.blocks import cut
from weft.plan.kernels.conv import ConvSizes
from weft.plan.kernels.conv_weight import (
    WeightGradientKernel,
    channels_to_spare,
    choose_weight_gradient_schedule,
    turned_around,
)
from weft.plan.kernels.depthwise_weight import DepthwiseWeightKernel, choose_depthwise_weight_schedule
from weft.plan.kernels.epilogue import Epilogue, Operand
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.images import Window as ConvWindow
from weft.plan.regions.lazy import Computed, Lazy, Leaf, Node
from weft.plan.regions.window import Window, in_order_of, plain

# Of a gradient in a single tile: parts, and from how many pixels on, for windows of so many places.
# For larger windows fewer pixels are as much work.
SHARES, PIXELS_TO_SHARE, USUAL_PLACES = 4, 16 * 1024, 9


def convolve_back(fusion: Fusion, value: Value) -> Lazy:
    """The gradient of a convolution's input, from that of its output; also a transposed convolution."""
    weight = fusion.assembly.in_memory(fusion.operand(value, 1))
    shape, dtype, groups = tensor_type(value).shape, dtype_of(value), value.attributes["groups"]
    conv, target = _sizes(value, dtype, shape, weight.window.shape), fusion.assembly.target
    border = border_for_few_channels(conv, target) if groups == 1 else None
    gradient = bordered(fusion, value, 0, Border(*border)) if border else side_by_side(fusion, value)
    home = in_order_of(shape, channels_last_strides(shape))
    strides = weight.window.strides
    asked = InputGradient(
        "input_gradient", conv, groups, (strides[0], strides[1], strides[2], strides[3]),
        images_of(gradient.window), images_of(home), border or (0, 0, 0, 0),
    )  # fmt: skip
    is_weight = fusion.is_weight(weight)
    found = input_gradient(asked, target)
    packed_now = [] if is_weight else [packed_weights(fusion, part, pack, weight) for _, part, pack in found]

    def emit(scale: Leaf | None, out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        asked_now = replace(asked, name=fusion.assembly.name("input_gradient"), of_input=images_of(out.window))
        for number, (first, part, pack) in enumerate(input_gradient(asked_now, target)):
            packed = packed_now[number] if packed_now else packed_weights(fusion, part, pack, weight, (scale, first))
            places = [
                moved(fusion.assembly.location(leaf), first * operand.column * DTYPE_BYTES[dtype])
                for leaf, operand in zip(inputs, epilogue.inputs, strict=True)
            ]
            reads = (fusion.assembly.location(gradient), packed, *places)
            fusion.assembly.call(replace(part, epilogue=epilogue), (fusion.assembly.location(out),), reads)

    def steps(window: Window) -> Operand | None:
        # A kernel makes the pixels of one phase only, and counts those: it reads what is alike for all of them.
        found = pixel_steps(shape, window)
        return found if found is not None and found.row == 0 else None

    scaled = partial(partial, emit) if is_weight else None
    return Product(
        fusion, home, dtype, partial(emit, None), steps, shape[1], scaled=scaled, writes=writes_images
    ).lazy()


def weigh(fusion: Fusion, value: Value) -> Lazy:
    """The gradient of a convolution's weight, from its input and the gradient of its output."""
    images, gradient = side_by_side(fusion, value), side_by_side(fusion, value, 1)
    shape, dtype, groups = tensor_type(value).shape, dtype_of(value), value.attributes["groups"]
    conv = replace(_sizes(value, dtype, images.window.shape, shape), dense=groups == 1)
    layouts, target = (images_of(images.window), images_of(gradient.window)), fusion.assembly.target
    reads = (fusion.assembly.location(images), fusion.assembly.location(gradient))
    name = fusion.assembly.name("weight_gradient")
    if groups > 1 and conv.in_channels == conv.out_channels == 1:
        conv = replace(conv, out_channels=groups)
        depthwise = DepthwiseWeightKernel(name, conv, *layouts, choose_depthwise_weight_schedule(conv, target))
        out = fusion.place_for(value, Window(shape, (1, 1, shape[3] * groups, groups)))
        fusion.assembly.call(depthwise, (fusion.assembly.location(out),), reads)
        return Lazy(shape, out)
    kernel = WeightGradientKernel(name, conv, groups, *layouts, choose_weight_gradient_schedule(conv, target))
    if groups == 1:
        home = Window(shape, (1, *kernel.steps))
        work = conv.images * prod(conv.out_size) * max(1, prod(conv.window.size) // USUAL_PLACES)
        if kernel.tile_count == 1 and work >= PIXELS_TO_SHARE:
            return _added_up(fusion, kernel, home, reads)
        rest = channels_to_spare(conv, target)
        if rest:
            return _in_two(fusion, value, kernel, rest, reads)
        out = fusion.place_for(value, home)
        fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)
        return Lazy(shape, out)
    # No steps tell where an output channel of any group lies: its group's place and its own in there are two.
    apart = (groups, shape[0] // groups, *shape[1:])
    found = fusion.arena(Window(apart, (kernel.group_size, 1, *kernel.steps)), dtype)
    fusion.assembly.call(kernel, (fusion.assembly.location(found),), reads)
    out = fusion.place_for(value, plain(shape))
    fusion.assembly.store_by_loop(Lazy(apart, found), Leaf(out.source, plain(apart), dtype))
    return Lazy(shape, out)


def _in_two(
    fusion: Fusion, value: Value, kernel: WeightGradientKernel, rest: int, reads: tuple[Location, Location]
) -> Lazy:
    """The gradient in two parts: of output channels that fill vectors, and of the few others."""
    shape, conv, target = tensor_type(value).shape, kernel.conv, fusion.assembly.target
    whole = conv.out_channels - rest
    full = replace(conv, out_channels=whole)
    most = replace(kernel, conv=full, schedule=choose_weight_gradient_schedule(full, target))
    few = turned_around(kernel, whole, fusion.assembly.name("weight_gradient"), target)
    channel, line, column = few.steps
    out = fusion.place_for(value, plain(shape))
    sizes = shape[1:]
    parts = (
        (most, reads, 0, Window((whole, *sizes), (1, *most.steps))),
        (few, reads[::-1], whole, Window((rest, *sizes), (channel, 1, line, column))),
    )
    for part, given, first, home in parts:
        found = fusion.arena(home, conv.element)
        fusion.assembly.call(part, (fusion.assembly.location(found),), given)
        inside = out.window.sliced((first, 0, 0, 0), (first + home.shape[0], *sizes), (1, 1, 1, 1))
        fusion.assembly.store_by_loop(Lazy(home.shape, found), Leaf(out.source, inside, conv.element))
    return Lazy(shape, out)


def _added_up(fusion: Fusion, kernel: WeightGradientKernel, home: Window, reads: tuple[Location, Location]) -> Lazy:
    """The gradient as the sum of what some of the images give, for lanes to share: its kernel has a single tile."""
    conv, found = kernel.conv, list[Leaf]()
    numbers = kernel.input.image, kernel.of_output.image
    shares = cut(conv.images, -(-conv.images // SHARES))
    for share in range(shares.count):
        first = shares.start(share)
        part = replace(conv, images=shares.start(share + 1) - first)
        given = (
            replace(place, offset=place.offset + first * step * DTYPE_BYTES[conv.element])
            for place, step in zip(reads, numbers, strict=True)
        )
        found.append(fusion.arena(home, conv.element))
        of_some = replace(kernel, name=fusion.assembly.name("weight_gradient"), conv=part)
        fusion.assembly.call(of_some, (fusion.assembly.location(found[-1]),), tuple(given))
    total: Node = found[0]
    for leaf in found[1:]:
        total = Computed("add", (total, leaf), conv.element)
    return Lazy(home.shape, total)


def _sizes(value: Value, dtype: str, images: tuple[int, ...], weight: tuple[int, ...]) -> ConvSizes:
    """The convolution that the gradient is of."""
    given = {name: pair(value.attributes[name]) for name in ("stride", "padding", "dilation")}
    window = ConvWindow(pair(weight[2:]), given["stride"], given["padding"], given["dilation"])
    groups = value.attributes["groups"]
    return ConvSizes(dtype, images[0], weight[1], weight[0] // groups, pair(images[2:]), window)
