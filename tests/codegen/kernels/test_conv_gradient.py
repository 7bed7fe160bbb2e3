"""Gradients of convolutions equal torch's for any window."""

from dataclasses import replace

import pytest
import torch
from tests.codegen.kernel_cases import assert_as_exact_as_eager, assert_untouched, compiled, guarded, targets
from torch.nn.grad import conv2d_input, conv2d_weight

from weft.codegen.kernels.conv import emit_conv
from weft.codegen.kernels.conv_weight import emit_depthwise_weight, emit_weight_gradient
from weft.codegen.kernels.pack import emit_pack
from weft.codegen.llvm.module import Module
from weft.plan.fuse.conv_gradients import InputGradient, border_for_few_channels, input_gradient
from weft.plan.kernels.conv import ConvSizes
from weft.plan.kernels.conv_weight import (
    DepthwiseWeightKernel,
    WeightGradientKernel,
    choose_depthwise_weight_schedule,
    choose_weight_gradient_schedule,
)
from weft.plan.kernels.images import Images, ImageWindow
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]
WINDOWS = {
    "3x3 padded": ImageWindow((3, 3), padding=(1, 1)),
    "5x5 bare": ImageWindow((5, 5)),
    "3x3 stride 2 padded": ImageWindow((3, 3), (2, 2), (1, 1)),
    "1x1 stride 2": ImageWindow((1, 1), (2, 2)),
    "dilated": ImageWindow((3, 2), (1, 2), (2, 1), (2, 3)),
    "dilated with a stride": ImageWindow((3, 3), (2, 3), (2, 2), (2, 2)),
    "7x7 stride 2 padded": ImageWindow((7, 7), (2, 2), (3, 3)),
}


def channels_last(channels: int, size: tuple[int, int]) -> Images:
    return Images(size[0] * size[1] * channels, size[1] * channels, channels, 1)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("channels", [(18, 21, 1), (18, 21, 3), (35, 35, 35), (6, 12, 6), (12, 6, 6)], ids=str)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_the_input_gradient_equals_autograd(
    target: Target, channels: tuple[int, int, int], window: ImageWindow
) -> None:
    (in_channels, out_channels, groups), size = channels, (11, 13)
    conv = ConvSizes("f32", 2, in_channels // groups, out_channels // groups, size, window)
    weight = torch.randn(out_channels, in_channels // groups, *window.size)
    layouts = channels_last(out_channels, conv.out_size), channels_last(in_channels, size)
    steps = input_gradient(InputGradient("gradient", conv, groups, weight.stride(), *layouts), target)

    def emit(module: Module) -> None:
        for _, kernel, pack in steps:
            emit_conv(module, kernel)
            emit_pack(module, pack)

    call = compiled(target, emit)
    gradient = torch.randn(2, out_channels, *conv.out_size)
    memory = gradient.permute(0, 2, 3, 1).contiguous()
    out, whole = guarded(2, *size, in_channels)
    for _, kernel, pack in steps:
        packed = torch.full((kernel.groups * kernel.packed_group,), torch.nan)
        call(pack.name, packed, weight, begin=0, end=pack.tile_count)
        call(kernel.name, out, memory, packed, begin=0, end=kernel.tile_count)
    options = (window.stride, window.padding, window.dilation, groups)
    eager = conv2d_input((2, in_channels, *size), weight, gradient, *options)
    exact = conv2d_input((2, in_channels, *size), weight.double(), gradient.double(), *options)
    assert_as_exact_as_eager(out.permute(0, 3, 1, 2), eager, exact)
    assert_untouched(whole)


FEW = {
    "4x4 stride 2 padded": ImageWindow((4, 4), (2, 2), (1, 1)),
    "3x3 padded": ImageWindow((3, 3), padding=(1, 1)),
    "5x4 strides": ImageWindow((5, 4), (3, 2), (2, 1)),
    "dilated rows": ImageWindow((3, 4), (1, 2), (2, 1), (2, 1)),
}


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("window", FEW.values(), ids=FEW)
def test_the_input_gradient_of_few_channels_goes_along_the_sum_inside_zeros(
    target: Target, window: ImageWindow
) -> None:
    size, channels, batch = (27, 22), 1 if target.lanes(32) < 8 else 3, 3
    conv = ConvSizes("f32", batch, channels, 40, size, window)
    border = border_for_few_channels(conv, target)
    assert border is not None
    top, below, left, behind = border
    weight, gradient = torch.randn(40, channels, *window.size), torch.randn(batch, 40, *conv.out_size)
    memory = torch.nn.functional.pad(gradient, (left, behind, top, below)).permute(0, 2, 3, 1).contiguous()
    layouts = channels_last(40, (memory.shape[1], memory.shape[2])), channels_last(channels, size)
    steps = input_gradient(InputGradient("gradient", conv, 1, weight.stride(), *layouts, border), target)
    assert "dot" in {kernel.way for _, kernel, _ in steps}
    assert not any(kernel.sees_outside for _, kernel, _ in steps)

    def emit(module: Module) -> None:
        for _, kernel, pack in steps:
            emit_conv(module, kernel)
            emit_pack(module, pack)

    call = compiled(target, emit)
    out, whole = guarded(batch, *size, channels)
    for _, kernel, pack in steps:
        packed = torch.full((kernel.groups * kernel.packed_group,), torch.nan)
        call(pack.name, packed, weight, begin=0, end=pack.tile_count)
        call(kernel.name, out, memory, packed, begin=0, end=kernel.tile_count)
    options = (window.stride, window.padding, window.dilation)
    eager = conv2d_input((batch, channels, *size), weight, gradient, *options)
    exact = conv2d_input((batch, channels, *size), weight.double(), gradient.double(), *options)
    assert_as_exact_as_eager(out.permute(0, 3, 1, 2), eager, exact)
    assert_untouched(whole)


Ends = dict[int, int]  # of images, rows and columns of the output
NO_ENDS: Ends = {}


def weight_gradient(
    target: Target,
    conv: ConvSizes,
    groups: int,
    tensors: tuple[torch.Tensor, torch.Tensor],
    *,
    images: int = 1,
    ends: Ends = NO_ENDS,
) -> torch.Tensor:
    """Compute the gradient of a weight tile by tile."""
    x, gradient = tensors
    layouts = channels_last(x.shape[1], conv.in_size), channels_last(gradient.shape[1], conv.out_size)
    schedule = replace(choose_weight_gradient_schedule(conv, target), images=images)
    kernel = WeightGradientKernel("weight", conv, groups, *layouts, schedule, tuple(ends))
    call = compiled(target, lambda module: emit_weight_gradient(module, kernel))
    out, whole = guarded(groups, *conv.window.size, conv.in_channels, conv.out_channels)
    memory = [tensor.permute(0, 2, 3, 1).contiguous() for tensor in (x, gradient)]
    for tile in reversed(range(kernel.tile_count)):
        call("weight", out, *memory, begin=tile, end=tile + 1, ends=tuple(ends.values()))
    assert_untouched(whole)
    shape = (groups, conv.out_channels, conv.in_channels, *conv.window.size)
    return out.flatten().as_strided(shape, (kernel.group_size, 1, *kernel.steps)).flatten(0, 1)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("channels", [(18, 21, 1), (1, 20, 1), (12, 9, 3), (6, 12, 6)], ids=str)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("images", [1, 2, 9])
def test_the_weight_gradient_equals_autograd(
    target: Target, channels: tuple[int, int, int], window: ImageWindow, images: int
) -> None:
    (in_channels, out_channels, groups), size = channels, (11, 13)
    per_group = in_channels // groups, out_channels // groups
    conv = ConvSizes("f32", 3, *per_group, size, window, dense=groups == 1)
    x, gradient = torch.randn(3, in_channels, *size), torch.randn(3, out_channels, *conv.out_size)
    out = weight_gradient(target, conv, groups, (x, gradient), images=images)
    shape = (out_channels, per_group[0], *window.size)
    options = (window.stride, window.padding, window.dilation, groups)
    eager = conv2d_weight(x, shape, gradient, *options)
    exact = conv2d_weight(x.double(), shape, gradient.double(), *options)
    assert_as_exact_as_eager(out, eager, exact)


def depthwise_weight_gradient(
    target: Target, conv: ConvSizes, tensors: tuple[torch.Tensor, torch.Tensor], ends: Ends = NO_ENDS
) -> torch.Tensor:
    """Compute the gradient of a depthwise weight tile by tile."""
    x, gradient = tensors
    layouts = channels_last(x.shape[1], conv.in_size), channels_last(x.shape[1], conv.out_size)
    schedule = choose_depthwise_weight_schedule(conv, target)
    kernel = DepthwiseWeightKernel("weight", conv, *layouts, schedule, tuple(ends))
    call = compiled(target, lambda module: emit_depthwise_weight(module, kernel))
    out, whole = guarded(*conv.window.size, x.shape[1])
    memory = [tensor.permute(0, 2, 3, 1).contiguous() for tensor in (x, gradient)]
    for tile in reversed(range(kernel.tile_count)):
        call("weight", out, *memory, begin=tile, end=tile + 1, ends=tuple(ends.values()))
    assert_untouched(whole)
    return out.permute(2, 0, 1)[:, None]


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("channels", [3, 35, 130])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_the_weight_gradient_of_a_depthwise_convolution_equals_autograd(
    target: Target, channels: int, window: ImageWindow
) -> None:
    size = (11, 13)
    conv = ConvSizes("f32", 3, 1, channels, size, window, dense=False)
    x, gradient = torch.randn(3, channels, *size), torch.randn(3, channels, *conv.out_size)
    out = depthwise_weight_gradient(target, conv, (x, gradient))
    shape, options = (channels, 1, *window.size), (window.stride, window.padding, window.dilation, channels)
    eager = conv2d_weight(x, shape, gradient, *options)
    exact = conv2d_weight(x.double(), shape, gradient.double(), *options)
    assert_as_exact_as_eager(out, eager, exact)


ENDS: list[Ends] = [{0: 2}, {0: 0}, {1: 3}, {2: 4}, {0: 1, 1: 2}, {0: 4, 1: 5, 2: 1}, {1: 0, 2: 3}]


def beyond(gradient: torch.Tensor, ends: Ends, number: float) -> torch.Tensor:
    """A gradient with a number in the place of what lies beyond ends."""
    found = gradient.clone()
    for axis, end in ends.items():
        found.narrow((0, 2, 3)[axis], end, found.shape[(0, 2, 3)[axis]] - end).fill_(number)
    return found


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize(
    "ends", [{0: 2}, {0: 0}, {1: 3}, {2: 4}, {0: 1, 1: 2}, {0: 4, 1: 5, 2: 1}, {1: 0, 2: 3}], ids=str
)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_nothing_beyond_an_end_is_added(target: Target, ends: Ends, window: ImageWindow) -> None:
    size, options = (11, 13), (window.stride, window.padding, window.dilation)
    for channels, groups, images in (((5, 21), 1, 1), ((1, 20), 1, 3), ((6, 9), 3, 2), ((8, 8), 8, 1)):
        conv = ConvSizes("f32", 5, channels[0] // groups, channels[1] // groups, size, window, dense=groups == 1)
        x, given = torch.randn(5, channels[0], *size), torch.randn(5, channels[1], *conv.out_size)
        ends = {axis: min(end, (5, *conv.out_size)[axis]) for axis, end in ends.items()}
        gradient, shape = beyond(given, ends, torch.nan), (channels[1], channels[0] // groups, *window.size)
        if groups == channels[0] == channels[1]:
            conv = replace(conv, out_channels=channels[1])
            out = depthwise_weight_gradient(target, conv, (x, gradient), ends)
        else:
            out = weight_gradient(target, conv, groups, (x, gradient), images=images, ends=ends)
        exact = conv2d_weight(x.double(), shape, beyond(given, ends, 0.0).double(), *options, groups)
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)


def test_the_weight_gradient_of_no_image_is_zero() -> None:
    conv = ConvSizes("f32", 0, 4, 8, (5, 5), ImageWindow((3, 3)))
    out = weight_gradient(TARGETS[0], conv, 1, (torch.randn(0, 4, 5, 5), torch.randn(0, 8, 3, 3)))
    assert torch.equal(out, torch.zeros(8, 4, 3, 3))
    conv = ConvSizes("f32", 0, 1, 8, (5, 5), ImageWindow((3, 3)), dense=False)
    out = depthwise_weight_gradient(TARGETS[0], conv, (torch.randn(0, 8, 5, 5), torch.randn(0, 8, 3, 3)))
    assert torch.equal(out, torch.zeros(8, 1, 3, 3))
