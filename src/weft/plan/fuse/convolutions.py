"""Make kernels of convolutions, directly or Winograd's way; each waits for the elementwise code that follows it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from weft.ir.graph import Value
from weft.plan.form.plan import KernelCall, Location
from weft.plan.fuse.fusion import Fusion, Source, dtype_of, tensor_type
from weft.plan.fuse.image_layout import (
    Border,
    bordered,
    channels_last,
    channels_last_strides,
    images_of,
    pair,
    pixel_steps,
    writes_images,
)
from weft.plan.fuse.matmul import PendingKernel
from weft.plan.kernels.conv import (
    ConvKernel,
    ConvSizes,
    WeightOrder,
    channel_parts,
    choose_conv_schedule,
    choose_depthwise_schedule,
    choose_dot_schedule,
    goes_along_inputs,
    pack_conv_weights,
    wants_border,
)
from weft.plan.kernels.expression import DTYPE_BYTES, SHORT_FLOATS
from weft.plan.kernels.gemm import Epilogue, EpilogueOperand
from weft.plan.kernels.images import ImageWindow
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.winograd import (
    PRODUCTS,
    Way,
    WinogradKernel,
    WinogradStage,
    choose_winograd,
    winograd_product,
    winograd_weights,
)
from weft.plan.regions.lazy import Lazy, Leaf
from weft.plan.regions.window import Window, in_order_of
from weft.target import Target


def winograd_way(sizes: ConvSizes, target: Target) -> tuple[Way, int]:
    """Which way a convolution is computed, and how many patches Winograd's takes at a time."""
    return choose_winograd(sizes, target) if sizes.element == "f32" else ("direct", 0)


def convolve_by_winograd(fusion: Fusion, value: Value, sizes: ConvSizes, images: Leaf, weight: Source) -> Lazy:
    """A convolution, with the elementwise code behind it."""
    shape, assembly = tensor_type(value).shape, fusion.assembly
    home = in_order_of(shape, channels_last_strides(shape))
    way, block = winograd_way(sizes, assembly.target)
    plain_kernel = WinogradKernel(
        "winograd", sizes.element, sizes.images, sizes.in_channels, sizes.out_channels, sizes.in_size,
        sizes.window.padding, images_of(images.window), images_of(home), Epilogue(), block,
        winograd_product("product", sizes, block, assembly.target),
    )  # fmt: skip
    is_weight = fusion.is_weight(weight.leaf)
    packed_now = None if is_weight else _packed_weights(fusion, plain_kernel, weight, None)

    def emit(scale: Leaf | None, out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        packed = packed_now or _packed_weights(fusion, plain_kernel, weight, scale)
        source = assembly.location(images) if way == "blocks" else _products(fusion, plain_kernel, images, packed)
        kernel = replace(plain_kernel, name=assembly.name("winograd"), output=images_of(out.window), epilogue=epilogue)
        places = [assembly.location(leaf) for leaf in inputs]
        if way == "blocks":
            assembly.call(kernel, (assembly.location(out),), (source, packed, *places))
        else:
            assembly.call(WinogradStage(kernel.name, kernel, "pixels"), (assembly.location(out),), (source, *places))

    def steps(window: Window) -> EpilogueOperand | None:
        return pixel_steps(shape, window)

    scaled = partial(partial, emit) if is_weight else None
    made = PendingKernel(fusion, home, sizes.element, partial(emit, None), steps, sizes.out_channels, scaled=scaled)
    made.writes, made.shorter = writes_images, SHORT_FLOATS if weight.is_short else ()
    return made.lazy()


def _products(fusion: Fusion, kernel: WinogradKernel, images: Leaf, packed: Location) -> Location:
    """The products of all patches, in memory."""
    assembly = fusion.assembly
    patches, products = (
        Location(assembly.buffer("arena", PRODUCTS * kernel.blocks.size * channels, kernel.element))
        for channels in (kernel.in_channels, kernel.out_channels)
    )
    stage = WinogradStage(assembly.name("patches"), kernel, "patches")
    assembly.call(stage, (patches,), (assembly.location(images),))
    product = replace(kernel.product, name=assembly.name("product"))
    assembly.call(product, (products,), (patches, packed))
    return products


def _packed_weights(fusion: Fusion, kernel: WinogradKernel, weight: Source, scale: Leaf | None) -> Location:
    """The transformed weights, packed: when a weight has changed, or in the call where it is none."""
    assembly, (out, into, row, column) = fusion.assembly, weight.leaf.window.strides
    prepare = winograd_weights(kernel, assembly.name("prepare"), (out, into, row, column), scaled=scale is not None)
    prepare = replace(prepare, casts=weight.casts)
    size, source = PRODUCTS * prepare.packed_size, assembly.location(weight.leaf)
    if not fusion.is_weight(weight.leaf):
        packed = Location(assembly.buffer("arena", size, kernel.element))
        assembly.call(prepare, (packed,), (source,))
        return packed
    packed = Location(assembly.buffer("packed", size, kernel.element))
    by_channel = () if scale is None else (assembly.location(scale),)
    assembly.packing.append(KernelCall(prepare, (packed,), (source, *by_channel)))
    return packed


FAR_WEIGHT_BYTES = 24 * 1024 * 1024  # of one program: what shared caches leave to it, whatever their size
FEW_PIXELS = 64


def convolve(fusion: Fusion, value: Value) -> Lazy:
    """A convolution of images; inside, channels lie side by side."""
    source, out_shape = fusion.source(fusion.operand(value, 1)), tensor_type(value).shape
    weight = source.leaf
    sizes, groups = _sizes(fusion, value, weight), value.attributes["groups"]
    depthwise = _is_depthwise(value)
    along_inputs = groups == 1 and goes_along_inputs(sizes, fusion.assembly.target)
    bordered = along_inputs or (groups == 1 and wants_border(sizes, fusion.assembly.target))
    images, sizes = _images(fusion, value, sizes, bare=bordered and sizes.sees_outside)
    home, dtype = in_order_of(out_shape, channels_last_strides(out_shape)), sizes.element
    way = winograd_way(sizes, fusion.assembly.target)[0] if groups == 1 and images.window.strides[1] == 1 else "direct"
    if way != "direct" and not (way == "stages" and _waits_for_weights(fusion, sizes)):
        return convolve_by_winograd(fusion, value, sizes, images, source)
    choose = choose_depthwise_schedule if depthwise else choose_conv_schedule
    choose = choose_dot_schedule if along_inputs and sizes.dense else choose
    plain_kernel = ConvKernel(
        "convolution", dtype, sizes.images, 1 if depthwise else groups, sizes.in_channels, sizes.out_channels,
        sizes.in_size, pair(out_shape[2:]), sizes.window, images_of(images.window), images_of(home), Epilogue(),
        choose(sizes, fusion.assembly.target), depthwise,
    )  # fmt: skip
    parts = channel_parts(plain_kernel, sizes, fusion.assembly.target)
    is_weight = fusion.is_weight(weight)

    def packed_part(scale: Leaf | None, first: int, part: ConvKernel) -> Location:
        pack = pack_conv_weights(part, fusion.assembly.name("pack"), weight_order(part, weight, first))
        pack = replace(pack, casts=source.casts)
        return packed_weights(fusion, part, pack, weight, (scale, first))

    packed_now = [] if is_weight else [packed_part(None, *one) for one in parts]

    def emit(scale: Leaf | None, out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        given = images_of(out.window)
        packs = packed_now or [packed_part(scale, *one) for one in parts]
        for (first, part), packed in zip(parts, packs, strict=True):
            output = replace(given, offset=given.offset + first * given.channel)
            name = fusion.assembly.name("convolution")
            kernel = replace(part, name=name, output=output, epilogue=epilogue)
            places = [
                moved(fusion.assembly.location(leaf), first * operand.column * DTYPE_BYTES[leaf.dtype])
                for leaf, operand in zip(inputs, epilogue.inputs, strict=True)
            ]
            reads = (fusion.assembly.location(images), packed, *places)
            fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)

    scaled = partial(partial, emit) if is_weight else None
    steps = partial(pixel_steps, out_shape)
    made = PendingKernel(fusion, home, dtype, partial(emit, None), steps, out_shape[1], scaled=scaled)
    made.writes = writes_images
    if source.is_short and all(part.walk.parts.count <= 1 for _, part in parts):
        made.shorter = SHORT_FLOATS
    return made.lazy()


def _sizes(fusion: Fusion, value: Value, weight: Leaf) -> ConvSizes:
    count, _, *in_size = fusion.operand(value).shape
    out_channels, in_channels, *window_size = weight.window.shape
    groups = value.attributes["groups"]
    given = {name: pair(value.attributes[name]) for name in ("stride", "padding", "dilation")}
    window = ImageWindow(pair(window_size), given["stride"], given["padding"], given["dilation"])
    outputs = out_channels if _is_depthwise(value) else out_channels // groups
    return ConvSizes(dtype_of(value), count, in_channels, outputs, pair(in_size), window)


def _is_depthwise(value: Value) -> bool:
    channels = tensor_type(value.operands[0]).shape[1], tensor_type(value).shape[1]
    return value.attributes["groups"] > 1 and set(channels) == {value.attributes["groups"]}


def _images(fusion: Fusion, value: Value, sizes: ConvSizes, *, bare: bool) -> tuple[Leaf, ConvSizes]:
    """The images as kernels read them, and the sizes that hold then; `bare` ones have what is outside beside them."""
    if bare:
        whole = tuple(
            (count - 1) * stride + (size - 1) * dilation + 1
            for count, stride, size, dilation in zip(
                sizes.out_size, sizes.window.stride, sizes.window.size, sizes.window.dilation, strict=True
            )
        )
        top, left = sizes.window.padding
        below, behind = (
            max(0, reach - before - length)
            for reach, before, length in zip(whole, sizes.window.padding, sizes.in_size, strict=True)
        )
        images = bordered(fusion, value, 0, Border(top, below, left, behind))
        window = replace(sizes.window, padding=(0, 0))
        return images, replace(sizes, in_size=pair(images.window.shape[2:]), window=window, cropped=sizes.out_size)
    images = fusion.assembly.in_memory(fusion.operand(value))
    channels = images.window.shape[1]
    if images.window.strides[1] != 1 and (channels > 1 or sizes.window.padding != (0, 0) or _is_depthwise(value)):
        images = channels_last(fusion, images)
    strides = images.window.strides
    dense = strides[3] == sizes.in_channels and (strides[1] == 1 or sizes.in_channels == 1)
    return images, replace(sizes, dense=dense)


def _waits_for_weights(fusion: Fusion, sizes: ConvSizes) -> bool:
    """Tell whether reading weights from memory takes longer than multiplying so few pixels with them.

    Winograd's weights are nearly twice as many.
    """
    return fusion.weight_bytes > FAR_WEIGHT_BYTES and sizes.images * prod(sizes.out_size) <= FEW_PIXELS


def moved(place: Location, distance: int) -> Location:
    """A place so many bytes behind another."""
    return replace(place, offset=place.offset + distance)


def weight_order(kernel: ConvKernel, weight: Leaf, first: int) -> WeightOrder:
    """Where a kernel finds its weights, the first of which are those of an output channel."""
    output, channel, row, column = weight.window.strides
    return WeightOrder(kernel.out_channels * output, channel, output, row, column, first * output)


def packed_weights(
    fusion: Fusion, kernel: ConvKernel, pack: PackKernel, weight: Leaf, scale: tuple[Leaf | None, int] = (None, 0)
) -> Location:
    """Where weights lie packed: when one has changed, or in the call where they are none.

    `scale` is what multiplies each output channel, and the kernel's first one.
    """
    source, size = fusion.assembly.location(weight), kernel.groups * kernel.packed_group
    by, first = scale
    if by is not None:
        by_channel = moved(fusion.assembly.location(by), first * DTYPE_BYTES[by.dtype])
        scaled = replace(pack, scale_batch=(kernel.out_channels,))
        return fusion.assembly.pack(scaled, (source, by_channel), size, kernel.element)
    if fusion.is_weight(weight):
        return fusion.assembly.pack(pack, (source,), size, kernel.element)
    place = Location(fusion.assembly.buffer("arena", size, kernel.element))
    fusion.assembly.call(pack, (place,), (source,))
    return place
