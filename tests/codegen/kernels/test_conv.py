"""Convolutions equal torch's for any window, layout and group count, on every target, however the tiles are split."""

from dataclasses import replace

import pytest
import torch
from tests.codegen.kernel_cases import assert_as_exact_as_eager, assert_untouched, compiled, guarded, targets
from torch.nn.functional import conv2d

from weft.codegen.kernels.conv import emit_conv
from weft.codegen.kernels.pack import emit_pack
from weft.plan.kernels.conv import (
    ConvKernel,
    ConvSizes,
    WeightOrder,
    channel_parts,
    choose_conv_schedule,
    choose_depthwise_schedule,
    choose_dot_schedule,
    pack_conv_weights,
)
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.gemm import Epilogue, EpilogueOperand
from weft.plan.kernels.images import Images, ImageWindow, out_size
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]
BIAS = EpilogueOperand((), 0, 1)


def channels_last(channels: int, size: tuple[int, int]) -> Images:
    return Images(size[0] * size[1] * channels, size[1] * channels, channels, 1)


def convolution(
    target: Target,
    images: int,
    channels: tuple[int, int, int],
    in_size: tuple[int, int],
    window: ImageWindow,
    **fields: object,
) -> ConvKernel:
    in_channels, out_channels, groups = channels
    size = out_size(in_size, window)
    per_group = in_channels // groups, out_channels // groups
    plain = ConvKernel(
        name="conv",
        element="f32",
        images=images,
        groups=groups,
        in_channels=per_group[0],
        out_channels=per_group[1],
        in_size=in_size,
        out_size=size,
        window=window,
        input=channels_last(in_channels, in_size),
        output=channels_last(out_channels, size),
        epilogue=Epilogue(bias=BIAS),
        schedule=choose_conv_schedule(ConvSizes("f32", images, *per_group, in_size, window, dense=groups == 1), target),
    )
    return replace(plain, **fields)


def run(target: Target, kernel: ConvKernel, out: torch.Tensor, *inputs: torch.Tensor) -> None:
    """Pack the weights, then compute; x and out as their memory lies."""
    x, weight, *rest = inputs
    output, channel, row, column = weight.stride()
    order = WeightOrder(kernel.out_channels * output, channel, output, row, column)
    pack = pack_conv_weights(kernel, "pack", order)
    packed, whole = guarded(kernel.groups * kernel.packed_group)
    call = compiled(target, lambda module: emit_conv(module, kernel), lambda module: emit_pack(module, pack))
    call("pack", packed, weight, begin=0, end=pack.tile_count)
    call("conv", out, x, packed, *rest, begin=0, end=kernel.tile_count)
    assert_untouched(whole)


def check(target: Target, kernel: ConvKernel, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Compare a convolution of a channels-last input with torch's."""
    out, whole = guarded(kernel.images, *kernel.out_size, weight.shape[0])
    memory = x.contiguous() if kernel.input.channel != 1 else x.permute(0, 2, 3, 1).contiguous()
    run(target, kernel, out, memory, weight, bias)
    window = kernel.window
    options = (window.stride, window.padding, window.dilation, kernel.groups)
    eager = conv2d(x, weight, bias, *options)
    exact = conv2d(x.double(), weight.double(), bias.double(), *options)
    assert_as_exact_as_eager(out.permute(0, 3, 1, 2), eager, exact)
    assert_untouched(whole)


Case = tuple[int, tuple[int, int, int], tuple[int, int], ImageWindow]


def check_random(target: Target, case: Case, **fields: object) -> None:
    """Compare a convolution of random numbers with torch's."""
    images, channels, in_size, window = case
    kernel = convolution(target, *case, **fields)
    weight = torch.randn(channels[1], channels[0] // channels[2], *window.size)
    check(target, kernel, torch.randn(images, channels[0], *in_size), weight, torch.randn(channels[1]))


CASES = {
    "3x3 padded": (2, (16, 33, 1), (7, 9), ImageWindow((3, 3), padding=(1, 1))),
    "3x3 bare": (1, (17, 48, 1), (9, 8), ImageWindow((3, 3))),
    "1x1": (1, (31, 65, 1), (5, 5), ImageWindow((1, 1))),
    "1x1 stride 2": (2, (8, 15, 1), (7, 6), ImageWindow((1, 1), stride=(2, 2))),
    "5x5 from 1 channel": (2, (1, 20, 1), (12, 14), ImageWindow((5, 5))),
    "7x7 stride 2 from 3 channels": (1, (3, 64, 1), (23, 21), ImageWindow((7, 7), stride=(2, 2))),
    "3x3 padded from 1 channel": (1, (1, 20, 1), (9, 9), ImageWindow((3, 3), padding=(1, 1))),
    "dilated": (1, (5, 16, 1), (13, 11), ImageWindow((3, 2), padding=(2, 1), dilation=(2, 3))),
    "uneven": (1, (6, 9, 1), (10, 17), ImageWindow((2, 5), stride=(3, 1), padding=(0, 2))),
    "grouped": (2, (12, 20, 4), (6, 7), ImageWindow((3, 3), padding=(1, 1))),
    "one pixel": (1, (64, 17, 1), (1, 1), ImageWindow((3, 3), padding=(1, 1))),
    "several small images": (13, (20, 40, 1), (5, 6), ImageWindow((3, 3), padding=(1, 1))),
    "several images, wide padding": (9, (50, 20, 1), (4, 5), ImageWindow((5, 5), padding=(4, 4))),
    "several images, stride": (11, (40, 33, 1), (7, 5), ImageWindow((3, 4), stride=(2, 3), padding=(1, 2))),
    "several images, dilated": (12, (24, 48, 1), (8, 7), ImageWindow((3, 3), padding=(3, 2), dilation=(3, 2))),
    "several images, many channels": (8, (130, 64, 1), (4, 4), ImageWindow((3, 3), padding=(1, 1))),
    "several images, outside the last rows": (
        7,
        (8, 96, 1),
        (3, 3),
        ImageWindow((2, 2), stride=(2, 2), padding=(1, 1)),
    ),
    "no image": (0, (4, 8, 1), (5, 5), ImageWindow((3, 3))),
}


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_convolution_equals_conv2d(target: Target, case: Case) -> None:
    check_random(target, case)


DEPTHWISE_WINDOWS = [ImageWindow((3, 3), (1, 1), (1, 1)), ImageWindow((5, 4), (2, 2), (2, 1)), ImageWindow((3, 3))]


# Rows of one block and of several, more columns of a window than registers hold weights of, places that no pixel sees.
DEPTHWISE_CASES = {
    "windows wider than registers": ((6, 40), ImageWindow((3, 19), padding=(1, 9))),
    "every block sees outside": ((4, 7), ImageWindow((5, 5), padding=(2, 2))),
    "steps of two over narrow rows": ((7, 7), ImageWindow((5, 5), stride=(2, 2), padding=(2, 2))),
    "places apart": ((9, 40), ImageWindow((3, 3), padding=(2, 2), dilation=(2, 2))),
    "places apart and steps": ((9, 12), ImageWindow((2, 4), stride=(1, 3), padding=(3, 4), dilation=(3, 2))),
    "windows larger than images": ((2, 3), ImageWindow((7, 7), padding=(3, 3))),
}


def check_depthwise(target: Target, channels: int, size: tuple[int, int], window: ImageWindow) -> None:
    sizes = ConvSizes("f32", 2, 1, channels, size, window)
    layout, schedule = channels_last(channels, size), choose_depthwise_schedule(sizes, target)
    kernel = convolution(target, 2, (1, channels, 1), size, window, depthwise=True, input=layout, schedule=schedule)
    x, weight, bias = torch.randn(2, channels, *size), torch.randn(channels, 1, *window.size), torch.randn(channels)
    out, whole = guarded(2, *kernel.out_size, channels)
    run(target, kernel, out, x.permute(0, 2, 3, 1).contiguous(), weight, bias)
    expected = conv2d(x, weight, bias, window.stride, window.padding, window.dilation, groups=channels)
    torch.testing.assert_close(out.permute(0, 3, 1, 2), expected)
    assert_untouched(whole)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("channels", [1, 16, 37, 70])
@pytest.mark.parametrize("window", DEPTHWISE_WINDOWS, ids=str)
def test_a_depthwise_convolution_equals_conv2d(target: Target, channels: int, window: ImageWindow) -> None:
    check_depthwise(target, channels, (11, 17), window)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("case", DEPTHWISE_CASES.values(), ids=DEPTHWISE_CASES)
def test_a_depthwise_convolution_loads_what_windows_share_once(
    target: Target, case: tuple[tuple[int, int], ImageWindow]
) -> None:
    check_depthwise(target, 37, *case)


def test_what_a_depthwise_convolution_leaves_out_costs_nothing() -> None:
    target, size, window = TARGETS[0], (4, 7), ImageWindow((5, 5), padding=(2, 2))
    schedule = choose_depthwise_schedule(ConvSizes("f32", 2, 1, 37, size, window), target)
    layout = channels_last(37, size)
    kernel = convolution(target, 2, (1, 37, 1), size, window, depthwise=True, input=layout, schedule=schedule)
    assert kernel.depth_done == pytest.approx((3 + 4 + 4 + 3) / 4 * (3 + 4 + 5 + 5 + 5 + 4 + 3) / 7)


def test_an_input_with_channels_outside_is_read_in_place() -> None:
    target = TARGETS[0]
    size, window = (8, 9), ImageWindow((3, 3), stride=(2, 1))
    schedule = choose_conv_schedule(ConvSizes("f32", 2, 5, 24, size, window, dense=False), target)
    layout = Images(5 * 72, 9, 1, 72)
    kernel = convolution(target, 2, (5, 24, 1), size, window, input=layout, schedule=schedule)
    check(target, kernel, torch.randn(2, 5, *size), torch.randn(24, 5, 3, 3), torch.randn(24))


def test_parts_of_the_channels_add_up() -> None:
    target = TARGETS[0]
    kernel = convolution(target, 1, (40, 24, 1), (6, 5), ImageWindow((3, 3), padding=(1, 1)))
    kernel = replace(kernel, schedule=replace(kernel.schedule, channel_block=12))
    check(target, kernel, torch.randn(1, 40, 6, 5), torch.randn(24, 40, 3, 3), torch.randn(24))


FEW = {
    "2 channels, bare": (3, (20, 2, 1), (9, 9), ImageWindow((5, 5))),
    "4 channels, padded": (13, (50, 4, 1), (6, 5), ImageWindow((5, 5), padding=(4, 4))),
    "3 channels, stride": (9, (33, 3, 1), (7, 8), ImageWindow((3, 3), stride=(2, 2), padding=(1, 1))),
    "1 channel": (2, (70, 1, 1), (4, 5), ImageWindow((1, 1))),
    "3 channels, whole vectors": (2, (32, 3, 1), (9, 8), ImageWindow((3, 2), stride=(1, 2))),
}


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("case", FEW.values(), ids=FEW)
def test_a_convolution_to_few_channels_may_have_its_vectors_along_the_inputs(target: Target, case: Case) -> None:
    images, channels, in_size, window = case
    schedule = choose_dot_schedule(ConvSizes("f32", images, *channels[:2], in_size, window), target)
    check_random(target, case, schedule=schedule)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_the_last_few_channels_are_a_part_of_their_own(target: Target) -> None:
    sizes = ConvSizes("f32", 8, 40, 17, (12, 12), ImageWindow((3, 3), padding=(1, 1)))
    whole = convolution(target, 8, (40, 17, 1), (12, 12), sizes.window)
    parts = channel_parts(whole, sizes, target)
    assert [(first, part.out_channels) for first, part in parts] == [(0, 16), (16, 1)]
    x, weight, bias = torch.randn(8, 40, 12, 12), torch.randn(17, 40, 3, 3), torch.randn(17)
    out, memory = torch.empty(8, 12, 12, 17), x.permute(0, 2, 3, 1).contiguous()
    for first, part in parts:
        end = first + part.out_channels
        run(target, part, out, memory, weight[first:end], bias[first:end])
    exact = conv2d(x.double(), weight.double(), bias.double(), padding=1)
    assert_as_exact_as_eager(out.permute(0, 3, 1, 2), conv2d(x, weight, bias, padding=1), exact)


@pytest.mark.parametrize("pixels_of", ["row", "rows", "images"])
def test_any_split_of_the_tiles_gives_the_same_bits(pixels_of: str) -> None:
    target = TARGETS[0]
    kernel = convolution(target, 2, (8, 40, 1), (9, 11), ImageWindow((3, 3), padding=(1, 1)))
    schedule = replace(kernel.schedule, tile_pixel_blocks=2, tile_panels=1, block_vectors=1, pixels_of=pixels_of)
    kernel = replace(kernel, schedule=schedule)
    x, packed, bias = torch.randn(2, 9, 11, 8), torch.randn(kernel.packed_group), torch.randn(40)
    call = compiled(target, lambda module: emit_conv(module, kernel))
    together, apart = torch.empty(2, 9, 11, 40), torch.empty(2, 9, 11, 40)
    call("conv", together, x, packed, bias, begin=0, end=kernel.tile_count)
    for tile in reversed(range(kernel.tile_count)):
        call("conv", apart, x, packed, bias, begin=tile, end=tile + 1)
    assert kernel.tile_count > 8
    assert torch.equal(together, apart)


def test_a_residual_is_added_before_relu_and_the_output_may_have_a_border() -> None:
    target = TARGETS[0]
    size = (6, 7)
    kernel = convolution(target, 2, (16, 20, 1), size, ImageWindow((3, 3), padding=(1, 1)))
    kernel = replace(
        kernel,
        output=Images(8 * 9 * 20, 9 * 20, 20, 1),
        epilogue=Epilogue(
            bias=BIAS,
            operands=(EpilogueOperand((), 20, 1),),
            body=(Instruction("add", (0, 1), "f32"), Instruction("relu", (2,), "f32")),
        ),
    )
    x, weight, bias = torch.randn(2, *size, 16), torch.randn(20, 16, 3, 3), torch.randn(20)
    residual, bordered = torch.randn(2, *size, 20), torch.zeros(2, 8, 9, 20)
    run(target, kernel, bordered[:, 1:, 1:], x, weight, bias, residual)
    expected = conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=1).permute(0, 2, 3, 1) + residual
    torch.testing.assert_close(bordered[:, 1:7, 1:8], expected.relu())
    assert bordered[:, 0].abs().sum() == 0
    assert bordered[:, 7].abs().sum() == 0
