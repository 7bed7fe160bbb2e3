"""Make kernels of convolutions, directly or Winograd's way; each waits for the elementwise code that follows it.

Of integers of 8 bits, images and weights are words of four channels.
Channels lie side by side, four of them in a word. So such a convolution is one of words, with a quarter of the
channels, in which the product of two words is the sum of four products; all else is as for floats.

    image   (n, h, w, 4 c) of u8   as   (n, h, w, c) of words
    weight  (o, r, s, 4 c) of i8   as   (o, r, s, c) of words
"""

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
    choose_byte_schedule,
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
from weft.plan.regions.lazy import Computed, Lazy, Leaf, Window, in_order_of
from weft.plan.regions.region import BYTES_OF_A_WORD
from weft.target import Target


def winograd_way(sizes: ConvSizes, target: Target) -> tuple[Way, int]:
    """Which way a convolution is computed, and how many patches Winograd's takes at a time."""
    return choose_winograd(sizes, target) if sizes.element == "f32" else ("direct", 0)


def goes_by_winograd(fusion: Fusion, sizes: ConvSizes, *, ends: bool = False) -> bool:
    """Tell whether a convolution in one group is best computed Winograd's way; `ends` where it ends as images do.

    Stages take the patches of all images through memory at once, also where a call has few of them.
    """
    way = winograd_way(sizes, fusion.assembly.target)[0]
    is_whole = not (ends or fusion.varies)
    return way == "blocks" or (way == "stages" and is_whole and not _waits_for_weights(fusion, sizes))


def convolve_by_winograd(
    fusion: Fusion, value: Value, sizes: ConvSizes, images: Leaf, weight: tuple[Source, WeightOrder]
) -> Lazy:
    """A convolution, with the elementwise code behind it; of the weight it is said where a window finds its numbers."""
    shape, assembly = tensor_type(value).shape, fusion.assembly
    home = in_order_of(shape, channels_last_strides(shape))
    way, block = winograd_way(sizes, assembly.target)
    plain_kernel = WinogradKernel(
        "winograd", sizes.element, sizes.images, sizes.in_channels, sizes.out_channels, sizes.in_size,
        sizes.window.padding, images_of(images.window), images_of(home), Epilogue(), block,
        winograd_product("product", sizes, block, assembly.target), sizes.limited,
    )  # fmt: skip
    limits = fusion.limits(value)
    source = weight[0]
    is_weight = fusion.is_weight(source.leaf)
    packed_now = None if is_weight else _packed_weights(fusion, plain_kernel, weight, None)

    def emit(scale: Leaf | None, out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        packed = packed_now or _packed_weights(fusion, plain_kernel, weight, scale)
        given = assembly.location(images) if way == "blocks" else _products(fusion, plain_kernel, images, packed)
        kernel = replace(plain_kernel, name=assembly.name("winograd"), output=images_of(out.window), epilogue=epilogue)
        places = [assembly.location(leaf) for leaf in inputs]
        if way == "blocks":
            assembly.call(kernel, (assembly.location(out),), (given, packed, *places, *limits))
        else:
            assembly.call(WinogradStage(kernel.name, kernel, "pixels"), (assembly.location(out),), (given, *places))

    def steps(window: Window) -> EpilogueOperand | None:
        return pixel_steps(shape, window)

    scaled = partial(partial, emit) if is_weight else None
    made = PendingKernel(fusion, home, sizes.element, partial(emit, None), steps, sizes.out_channels, scaled=scaled)
    made.writes, made.shorter = writes_images, SHORT_FLOATS if source.is_short else ()
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


def _packed_weights(
    fusion: Fusion, kernel: WinogradKernel, weight: tuple[Source, WeightOrder], scale: Leaf | None
) -> Location:
    """The transformed weights, packed: when a weight has changed, or in the call where it is none."""
    assembly, (given, order) = fusion.assembly, weight
    strides = order.output, order.input, order.row, order.column
    prepare = winograd_weights(kernel, assembly.name("prepare"), strides, order.first, scaled=scale is not None)
    prepare = replace(prepare, casts=given.casts)
    size, source = PRODUCTS * prepare.packed_size, assembly.location(given.leaf)
    if not fusion.is_weight(given.leaf):
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
    sizes, groups = _sizes(value), value.attributes["groups"]
    depthwise = _is_depthwise(value)
    along_inputs = groups == 1 and goes_along_inputs(sizes, fusion.assembly.target)
    bordered = has_border(value, fusion.assembly.target)
    limits = fusion.limits(value)
    if limits:
        sizes = replace(sizes, limited=fusion.limited[value].limited)
    images, sizes = _images(fusion, value, sizes, bare=bordered and sizes.sees_outside)
    home, dtype = in_order_of(out_shape, channels_last_strides(out_shape)), sizes.element
    plain = groups == 1 and images.window.strides[1] == 1
    if plain and goes_by_winograd(fusion, sizes, ends=bool(limits)):
        output, channel, row, column = weight.window.strides
        order = WeightOrder(0, channel, output, row, column)
        return convolve_by_winograd(fusion, value, sizes, images, (source, order))
    choose = choose_depthwise_schedule if depthwise else choose_conv_schedule
    choose = choose_dot_schedule if along_inputs and sizes.dense else choose
    plain_kernel = ConvKernel(
        "convolution", dtype, sizes.images, 1 if depthwise else groups, sizes.in_channels, sizes.out_channels,
        sizes.in_size, pair(out_shape[2:]), sizes.window, images_of(images.window), images_of(home), Epilogue(),
        choose(sizes, fusion.assembly.target), depthwise, limited=sizes.limited,
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
            reads = (fusion.assembly.location(images), packed, *places, *limits)
            fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)

    scaled = partial(partial, emit) if is_weight else None
    steps = partial(pixel_steps, out_shape)
    made = PendingKernel(fusion, home, dtype, partial(emit, None), steps, out_shape[1], scaled=scaled)
    made.writes = writes_images
    if source.is_short and all(part.walk.parts.count <= 1 for _, part in parts):
        made.shorter = SHORT_FLOATS
    return made.lazy()


def has_border(value: Value, target: Target) -> bool:
    """Whether a convolution is computed inside a border of zeros, if its windows see what is outside.

    So are those of integers of 8 bits.
    """
    if value.op != "convolution":
        return False
    if dtype_of(value) == "i32":
        return True
    sizes = _sizes(value)
    along_inputs = goes_along_inputs(sizes, target)
    return value.attributes["groups"] == 1 and (along_inputs or wants_border(sizes, target))


def _sizes(value: Value) -> ConvSizes:
    count, _, *in_size = tensor_type(value.operands[0]).shape
    out_channels, in_channels, *window_size = tensor_type(value.operands[1]).shape
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
    images = fusion.assembly.in_memory(fusion.images(value))
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


WORDS = "i32"


def convolve_bytes(fusion: Fusion, value: Value) -> Lazy:
    """A convolution of images of u8 with weights of i8, whose sums are integers of 32 bits."""
    images, weight = _byte_images(fusion, value), _weight(fusion, value)
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


def _byte_images(fusion: Fusion, value: Value) -> Leaf:
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
