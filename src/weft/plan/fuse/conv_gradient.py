"""A convolution -> convolutions that compute the gradient of its input.

An input pixel gets something from every window that saw it. With a stride, pixels whose rows and columns leave the same
rest saw the same places of the window: for each such phase the gradient is a convolution of stride 1 of the output's
gradient, with some of the weights, turned around.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

from weft.plan.kernels.conv import ConvKernel, ConvSizes
from weft.plan.kernels.epilogue import Epilogue
from weft.plan.kernels.images import Images, Window
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.schedule_conv import (
    WeightOrder,
    channel_parts,
    choose_conv_schedule,
    choose_depthwise_schedule,
    choose_dot_schedule,
    goes_along_inputs,
    pack_conv_weights,
)
from weft.target import Target


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
    if not any(goes_along_inputs(_sizes(conv, pair), target) for pair in pairs):
        return None
    sides: list[int] = []
    for axis in (0, 1):
        found = list(phases(conv, axis))
        sides.append(max(0, *(-phase.start for phase in found)))
        behind = (phase.start + phase.count + (phase.taps - 1) * phase.dilation for phase in found)
        sides.append(max(0, max(behind) - conv.out_size[axis]))
    return sides[0], sides[1], sides[2], sides[3]


def _sizes(conv: ConvSizes, pair: tuple[Phase, Phase]) -> ConvSizes:
    """The convolution that one phase of an ungrouped gradient is, where nothing is outside."""
    down, across = pair
    window = Window(size=(down.taps, across.taps), dilation=(down.dilation, across.dilation))
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
    window = Window(
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
    turned = WeightOrder(
        group=conv.out_channels * output,
        input=output,
        output=own,
        row=-down.step * row,
        column=-across.step * column,
        first=down.last * row + across.last * column,
    )
    for first, part in channel_parts(kernel, sizes, target):
        named = replace(part, name=f"{kernel.name}.{first}")
        order = replace(turned, first=turned.first + first * own)
        yield first, named, pack_conv_weights(named, f"{named.name}.pack", order)
