"""Make kernels of convolutions' gradients, between which and the forward's images stay in the layout of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod

from weft.ir.graph import Value
from weft.plan.form.plan import Location
from weft.plan.fuse.convolutions import convolve_by_winograd, goes_by_winograd, moved, packed_weights
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
)
from weft.plan.kernels.conv_weight import (
    DepthwiseWeightKernel,
    WeightGradientKernel,
    channels_to_spare,
    choose_depthwise_weight_schedule,
    choose_weight_gradient_schedule,
    with_roles_exchanged,
)
from weft.plan.kernels.expression import DTYPE_BYTES, SHORT_FLOATS
from weft.plan.kernels.gemm import Epilogue, EpilogueOperand
from weft.plan.kernels.images import Images, ImageWindow
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.walk import cut
from weft.plan.regions.lazy import Computed, Lazy, Leaf, Node, Window, in_order_of, plain
from weft.target import Target

# The gradient of a convolution's input is made of convolutions. An input pixel gets something from every window that
# saw it. With a stride, pixels whose rows and columns leave the same rest saw the same places of the window: for each
# such phase the gradient is a convolution of stride 1 of the output's gradient, with some of the weights, reversed.


@dataclass(frozen=True)
class InputGradient:
    """What is asked for: the convolution, its groups, the weight's strides, both gradients' layouts, a name.

    `border` is how many rows and columns of zeros the output's gradient has around it: above, below, left and right.
    """

    name: str
    conv: ConvSizes
    groups: int
    weight: tuple[int, int, int, int]
    of_output: Images
    of_input: Images
    border: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def in_size(self) -> tuple[int, int]:
        """Give the rows and columns of what is read, with its border."""
        (height, width), (above, below, left, right) = self.conv.out_size, self.border
        return above + height + below, left + width + right

    @property
    def depthwise(self) -> bool:
        """Tell whether each channel sees itself alone."""
        return self.groups > 1 and self.conv.in_channels == self.conv.out_channels == 1


@dataclass(frozen=True)
class Phase:
    """The pixels along one axis that leave one rest: how many, and the places of the window that saw them.

    The last such place of the window is `last`, every `step`-th before it is another; in the output's gradient they lie
    `dilation` apart, and the first one `start` from the pixel's count.
    """

    rest: int
    count: int
    taps: int
    last: int
    step: int
    dilation: int
    start: int


def input_gradient(asked: InputGradient, target: Target) -> list[tuple[int, ConvKernel, PackKernel]]:
    """Give the convolutions, each with its first channel and the packing of its weights.

    Together they write every input pixel once. The arguments of each are of_input, of_output, its packed weights.
    """
    pairs = [(down, across) for down in phases(asked.conv, 0) for across in phases(asked.conv, 1)]
    return [part for number, pair in enumerate(pairs) for part in phase_gradient(asked, number, pair, target)]


def border_for_few_channels(conv: ConvSizes, target: Target) -> tuple[int, int, int, int] | None:
    """Give the border that the output's gradient needs, where it is of few channels: no phase looks outside."""
    pairs = [(down, across) for down in phases(conv, 0) for across in phases(conv, 1)]
    if not any(goes_along_inputs(_phase_sizes(conv, pair), target) for pair in pairs):
        return None
    sides: list[int] = []
    for axis in (0, 1):
        found = list(phases(conv, axis))
        sides.append(max(0, *(-phase.start for phase in found)))
        behind = (phase.start + phase.count + (phase.taps - 1) * phase.dilation for phase in found)
        sides.append(max(0, max(behind) - conv.out_size[axis]))
    return sides[0], sides[1], sides[2], sides[3]


def _phase_sizes(conv: ConvSizes, pair: tuple[Phase, Phase]) -> ConvSizes:
    """The convolution that one phase of an ungrouped gradient is, where nothing is outside."""
    down, across = pair
    window = ImageWindow(size=(down.taps, across.taps), dilation=(down.dilation, across.dilation))
    size = down.count, across.count
    return ConvSizes(conv.element, conv.images, conv.out_channels, conv.in_channels, conv.out_size, window, size)


def phases(conv: ConvSizes, axis: int) -> Iterator[Phase]:
    """List the phases along an axis that have pixels."""
    window = conv.window
    size, stride, padding, dilation = (
        field[axis] for field in (window.size, window.stride, window.padding, window.dilation)
    )
    shared = gcd(stride, dilation)
    for rest in range(min(stride, conv.in_size[axis])):
        taps = [tap for tap in range(size) if (rest + padding - tap * dilation) % stride == 0]
        count = -(-(conv.in_size[axis] - rest) // stride)
        last = taps[-1] if taps else 0
        start = (rest + padding - last * dilation) // stride
        yield Phase(rest, count, len(taps), last, stride // shared, dilation // shared, start)


def phase_gradient(
    asked: InputGradient, number: int, pair: tuple[Phase, Phase], target: Target
) -> Iterator[tuple[int, ConvKernel, PackKernel]]:
    """Give the convolutions of one phase down and across, by parts of the channels, and the packing of weights."""
    conv, (down, across) = asked.conv, pair
    window = ImageWindow(
        size=(down.taps, across.taps),
        padding=(-down.start - asked.border[0], -across.start - asked.border[2]),
        dilation=(down.dilation, across.dilation),
    )
    size = down.count, across.count
    groups, *channels = (1, 1, asked.groups) if asked.depthwise else (asked.groups, conv.out_channels, conv.in_channels)
    dense = asked.of_output.column == channels[0]
    sizes = ConvSizes(conv.element, conv.images, channels[0], channels[1], asked.in_size, window, size, dense)
    choose = choose_depthwise_schedule if asked.depthwise else choose_conv_schedule
    if groups == 1 and dense and not asked.depthwise and not sizes.sees_outside and goes_along_inputs(sizes, target):
        choose = choose_dot_schedule
    layout, (below, beside) = asked.of_input, conv.window.stride
    kernel = ConvKernel(
        name=f"{asked.name}.{number}",
        element=conv.element,
        images=conv.images,
        groups=groups,
        in_channels=sizes.in_channels,
        out_channels=sizes.out_channels,
        in_size=asked.in_size,
        out_size=size,
        window=window,
        input=asked.of_output,
        output=Images(
            image=layout.image,
            row=layout.row * below,
            column=layout.column * beside,
            channel=layout.channel,
            offset=layout.offset + down.rest * layout.row + across.rest * layout.column,
        ),
        epilogue=Epilogue(),
        schedule=choose(sizes, target),
        depthwise=asked.depthwise,
    )
    output, channel, row, column = asked.weight
    own = output if asked.depthwise else channel
    mirrored = WeightOrder(
        group=conv.out_channels * output,
        input=output,
        output=own,
        row=-down.step * row,
        column=-across.step * column,
        first=down.last * row + across.last * column,
    )
    for first, part in channel_parts(kernel, sizes, target):
        named = replace(part, name=f"{kernel.name}.{first}")
        order = replace(mirrored, first=mirrored.first + first * own)
        yield first, named, pack_conv_weights(named, f"{named.name}.pack", order)


def _convolution_back(conv: ConvSizes, weight: tuple[int, int, int, int]) -> tuple[ConvSizes, WeightOrder]:
    """The one convolution that a gradient without steps is: channels exchanged, and the window's weights reversed."""
    (rows, columns), (top, left), (output, channel, row, column) = conv.window.size, conv.window.padding, weight
    window = ImageWindow((rows, columns), padding=(rows - 1 - top, columns - 1 - left))
    sizes = ConvSizes(conv.element, conv.images, conv.out_channels, conv.in_channels, conv.out_size, window)
    first = (rows - 1) * row + (columns - 1) * column
    return sizes, WeightOrder(0, output, channel, -row, -column, first)


# Of a gradient in a single tile: parts, and from how many pixels on, for windows of so many places.
# For larger windows fewer pixels are as much work.
SHARES, PIXELS_TO_SHARE, USUAL_PLACES = 4, 16 * 1024, 9


def convolve_back(fusion: Fusion, value: Value) -> Lazy:
    """The gradient of a convolution's input, from that of its output; also a transposed convolution."""
    source = fusion.source(fusion.operand(value, 1))
    weight = source.leaf
    shape, dtype, groups = tensor_type(value).shape, dtype_of(value), value.attributes["groups"]
    conv, target = _sizes(value, dtype, shape, weight.window.shape), fusion.assembly.target
    border = border_for_few_channels(conv, target) if groups == 1 else None
    gradient = bordered(fusion, value, 0, Border(*border)) if border else side_by_side(fusion, value)
    strides = weight.window.strides
    if groups == 1 and border is None and conv.window.stride == conv.window.dilation == (1, 1):
        sizes, order = _convolution_back(conv, (strides[0], strides[1], strides[2], strides[3]))
        if goes_by_winograd(fusion, sizes):
            return convolve_by_winograd(fusion, value, sizes, gradient, (source, order))
    home = in_order_of(shape, channels_last_strides(shape))
    asked = InputGradient(
        "input_gradient", conv, groups, (strides[0], strides[1], strides[2], strides[3]),
        images_of(gradient.window), images_of(home), border or (0, 0, 0, 0),
    )  # fmt: skip
    is_weight = fusion.is_weight(weight)
    found = input_gradient(asked, target)

    def packed_part(part: ConvKernel, pack: PackKernel, scale: tuple[Leaf | None, int] = (None, 0)) -> Location:
        return packed_weights(fusion, part, replace(pack, casts=source.casts), weight, scale)

    packed_now = [] if is_weight else [packed_part(part, pack) for _, part, pack in found]

    def emit(scale: Leaf | None, out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        asked_now = replace(asked, name=fusion.assembly.name("input_gradient"), of_input=images_of(out.window))
        for number, (first, part, pack) in enumerate(input_gradient(asked_now, target)):
            packed = packed_now[number] if packed_now else packed_part(part, pack, (scale, first))
            places = [
                moved(fusion.assembly.location(leaf), first * operand.column * DTYPE_BYTES[leaf.dtype])
                for leaf, operand in zip(inputs, epilogue.inputs, strict=True)
            ]
            reads = (fusion.assembly.location(gradient), packed, *places)
            fusion.assembly.call(replace(part, epilogue=epilogue), (fusion.assembly.location(out),), reads)

    def steps(window: Window) -> EpilogueOperand | None:
        # A kernel makes the pixels of one phase only, and counts those: it reads what is alike for all of them.
        found = pixel_steps(shape, window)
        return found if found is not None and found.row == 0 else None

    scaled = partial(partial, emit) if is_weight else None
    made = PendingKernel(fusion, home, dtype, partial(emit, None), steps, shape[1], scaled=scaled)
    made.writes = writes_images
    if source.is_short and all(part.walk.parts.count <= 1 for _, part, _ in found):
        made.shorter = SHORT_FLOATS
    return made.lazy()


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
    few = with_roles_exchanged(kernel, whole, fusion.assembly.name("weight_gradient"), target)
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
    window = ImageWindow(pair(weight[2:]), given["stride"], given["padding"], given["dilation"])
    groups = value.attributes["groups"]
    return ConvSizes(dtype, images[0], weight[1], weight[0] // groups, pair(images[2:]), window)
