"""Gradients of convolutions -> kernels; what is between them and the forward's stays in the layout of kernels."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.graph import Value
from weft.plan.conv_gradient import InputGradient, input_gradient
from weft.plan.fusion import Fusion, dtype_of, tensor_type
from weft.plan.image_layout import channels_last, channels_last_strides, images_of, pair
from weft.plan.kernel_conv import ConvSizes
from weft.plan.kernel_conv import Window as ConvWindow
from weft.plan.kernel_conv_weight import WeightGradientKernel, choose_weight_gradient_schedule
from weft.plan.kernel_depthwise_weight import DepthwiseWeightKernel, choose_depthwise_weight_schedule
from weft.plan.lazy import Lazy, Leaf
from weft.plan.plan import Location
from weft.plan.window import Window, in_order_of, plain


def convolve_back(fusion: Fusion, value: Value) -> Lazy:
    """The gradient of a convolution's input, from that of its output; also a transposed convolution."""
    gradient = _side_by_side(fusion, fusion.assembly.in_memory(fusion.operand(value)))
    weight = fusion.assembly.in_memory(fusion.operand(value, 1))
    shape, dtype = tensor_type(value).shape, dtype_of(value)
    home = in_order_of(shape, channels_last_strides(shape))
    out = fusion.place_for(value, home)
    conv = _sizes(value, dtype, shape, weight.window.shape)
    strides = weight.window.strides
    asked = InputGradient(
        fusion.assembly.name("input_gradient"), conv, value.attributes["groups"],
        (strides[0], strides[1], strides[2], strides[3]), images_of(gradient.window), images_of(home),
    )  # fmt: skip
    source = fusion.assembly.location(weight)
    for kernel, pack in input_gradient(asked, fusion.assembly.target):
        size = kernel.groups * kernel.packed_group
        if fusion.is_weight(weight):
            packed = fusion.assembly.pack(pack, source, size, dtype)
        else:
            packed = Location(fusion.assembly.buffer("arena", size, dtype))
            fusion.assembly.call(pack, (packed,), (source,))
        reads = (fusion.assembly.location(gradient), packed)
        fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)
    return Lazy(shape, out)


def weigh(fusion: Fusion, value: Value) -> Lazy:
    """The gradient of a convolution's weight, from its input and the gradient of its output."""
    images = _side_by_side(fusion, fusion.assembly.in_memory(fusion.operand(value)))
    gradient = _side_by_side(fusion, fusion.assembly.in_memory(fusion.operand(value, 1)))
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
        out = fusion.place_for(value, Window(shape, (1, *kernel.steps)))
        fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)
        return Lazy(shape, out)
    # No steps tell where an output channel of any group lies: its group's place and its own in there are two.
    apart = (groups, shape[0] // groups, *shape[1:])
    found = fusion.arena(Window(apart, (kernel.group_size, 1, *kernel.steps)), dtype)
    fusion.assembly.call(kernel, (fusion.assembly.location(found),), reads)
    out = fusion.place_for(value, plain(shape))
    fusion.assembly.store_by_loop(Lazy(apart, found), Leaf(out.source, plain(apart), dtype))
    return Lazy(shape, out)


def _sizes(value: Value, dtype: str, images: tuple[int, ...], weight: tuple[int, ...]) -> ConvSizes:
    """The convolution that the gradient is of."""
    given = {name: pair(value.attributes[name]) for name in ("stride", "padding", "dilation")}
    window = ConvWindow(pair(weight[2:]), given["stride"], given["padding"], given["dilation"])
    groups = value.attributes["groups"]
    return ConvSizes(dtype, images[0], weight[1], weight[0] // groups, pair(images[2:]), window)


def _side_by_side(fusion: Fusion, images: Leaf) -> Leaf:
    """The images with channels side by side and nothing between them."""
    dense = images.window.strides == channels_last_strides(images.window.shape)
    return images if dense else channels_last(fusion, images)
