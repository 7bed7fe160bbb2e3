"""Convolutions of images -> kernels; each waits for the elementwise code that follows it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from weft.ir.graph import Value
from weft.plan.epilogue import Epilogue
from weft.plan.expression import DTYPE_BYTES
from weft.plan.fuse_products import Product
from weft.plan.fuse_winograd import convolve_by_winograd, winograd_way
from weft.plan.fusion import Fusion, dtype_of, tensor_type
from weft.plan.image_layout import channels_last, channels_last_strides, images_of, pair, pixel_steps
from weft.plan.kernel_conv import ConvKernel, ConvSizes
from weft.plan.kernel_conv import Window as ConvWindow
from weft.plan.lazy import Lazy, Leaf
from weft.plan.plan import Location
from weft.plan.schedule_conv import (
    WeightOrder,
    channel_parts,
    choose_conv_schedule,
    choose_depthwise_schedule,
    pack_conv_weights,
)
from weft.plan.window import in_order_of

FAR_WEIGHT_BYTES = 24 * 1024 * 1024  # of one program: what shared caches leave to it, whatever their size
FEW_PIXELS = 64


def convolve(fusion: Fusion, value: Value) -> Lazy:
    """A convolution of images; inside, channels lie side by side."""
    images, dtype = fusion.assembly.in_memory(fusion.operand(value)), dtype_of(value)
    weight = fusion.assembly.in_memory(fusion.operand(value, 1))
    count, channels, *in_size = images.window.shape
    out_channels, in_channels, *window_size = weight.window.shape
    groups = value.attributes["groups"]
    given = {name: pair(value.attributes[name]) for name in ("stride", "padding", "dilation")}
    window = ConvWindow(pair(window_size), given["stride"], given["padding"], given["dilation"])
    depthwise = groups == channels == out_channels and groups > 1
    if images.window.strides[1] != 1 and (channels > 1 or window.padding != (0, 0) or depthwise):
        images = channels_last(fusion, images)
    dense = images.window.strides[3] == in_channels and (images.window.strides[1] == 1 or in_channels == 1)
    out_shape = tensor_type(value).shape
    home = in_order_of(out_shape, channels_last_strides(out_shape))
    own_inputs, own_outputs = (1, out_channels) if depthwise else (in_channels, out_channels // groups)
    sizes = ConvSizes(dtype, count, own_inputs, own_outputs, pair(in_size), window, dense=dense)
    way = winograd_way(sizes, fusion.assembly.target)[0] if groups == 1 and images.window.strides[1] == 1 else "direct"
    if way != "direct" and not (way == "stages" and _waits_for_weights(fusion, sizes)):
        return convolve_by_winograd(fusion, value, sizes, images, weight)
    choose = choose_depthwise_schedule if depthwise else choose_conv_schedule
    plain_kernel = ConvKernel(
        "convolution", dtype, count, 1 if depthwise else groups, own_inputs, own_outputs, pair(in_size),
        pair(out_shape[2:]), window, images_of(images.window), images_of(home), Epilogue(),
        choose(sizes, fusion.assembly.target), depthwise,
    )  # fmt: skip
    parts = channel_parts(plain_kernel, sizes, fusion.assembly.target)
    is_weight = fusion.is_weight(weight)
    packed_now = [] if is_weight else [_packed_weights(fusion, part, weight, first) for first, part in parts]

    def emit(scale: Leaf | None, out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        given = images_of(out.window)
        packs = packed_now or [_packed_weights(fusion, part, weight, first, scale) for first, part in parts]
        for (first, part), packed in zip(parts, packs, strict=True):
            output = replace(given, offset=given.offset + first * given.channel)
            name = fusion.assembly.name("convolution")
            kernel = replace(part, name=name, output=output, epilogue=epilogue)
            places = [
                _moved(fusion.assembly.location(leaf), first * operand.column * DTYPE_BYTES[dtype])
                for leaf, operand in zip(inputs, epilogue.inputs, strict=True)
            ]
            reads = (fusion.assembly.location(images), packed, *places)
            fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)

    scaled = partial(partial, emit) if is_weight else None
    steps = partial(pixel_steps, out_shape)
    return Product(fusion, home, dtype, partial(emit, None), steps, out_channels, scaled=scaled).lazy()


def _waits_for_weights(fusion: Fusion, sizes: ConvSizes) -> bool:
    """Tell whether reading weights from memory takes longer than multiplying so few pixels with them.

    Winograd's weights are nearly twice as many.
    """
    return fusion.weight_bytes > FAR_WEIGHT_BYTES and sizes.images * prod(sizes.out_size) <= FEW_PIXELS


def _moved(place: Location, distance: int) -> Location:
    return replace(place, offset=place.offset + distance)


def _packed_weights(
    fusion: Fusion, kernel: ConvKernel, weight: Leaf, first: int, scale: Leaf | None = None
) -> Location:
    output, channel, row, column = weight.window.strides
    order = WeightOrder(kernel.out_channels * output, channel, output, row, column, first * output)
    pack = pack_conv_weights(kernel, fusion.assembly.name("pack"), order)
    source, size = fusion.assembly.location(weight), kernel.groups * kernel.packed_group
    if scale is not None:
        by_channel = _moved(fusion.assembly.location(scale), first * DTYPE_BYTES[scale.dtype])
        scaled = replace(pack, scale_batch=(kernel.out_channels,))
        return fusion.assembly.pack(scaled, (source, by_channel), size, kernel.element)
    if fusion.is_weight(weight):
        return fusion.assembly.pack(pack, (source,), size, kernel.element)
    place = Location(fusion.assembly.buffer("arena", size, kernel.element))
    fusion.assembly.call(pack, (place,), (source,))
    return place
