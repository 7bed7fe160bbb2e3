"""Gradients of convolutions equal torch's for any window."""

import pytest
import torch
from tests.codegen.kernels import assert_as_exact_as_eager, assert_untouched, compiled, guarded, targets
from torch.nn.grad import conv2d_input

from weft.codegen.conv import emit_conv
from weft.codegen.module import Module
from weft.codegen.pack import emit_pack
from weft.plan.conv_gradient import InputGradient, input_gradient
from weft.plan.kernel_conv import ConvSizes, Images, Window
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]
WINDOWS = {
    "3x3 padded": Window((3, 3), padding=(1, 1)),
    "5x5 bare": Window((5, 5)),
    "3x3 stride 2 padded": Window((3, 3), (2, 2), (1, 1)),
    "1x1 stride 2": Window((1, 1), (2, 2)),
    "dilated": Window((3, 2), (1, 2), (2, 1), (2, 3)),
    "dilated with a stride": Window((3, 3), (2, 3), (2, 2), (2, 2)),
    "7x7 stride 2 padded": Window((7, 7), (2, 2), (3, 3)),
}


def channels_last(channels: int, size: tuple[int, int]) -> Images:
    return Images(size[0] * size[1] * channels, size[1] * channels, channels, 1)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_the_input_gradient_equals_autograd(target: Target, groups: int, window: Window) -> None:
    size, in_channels, out_channels = (11, 13), 18, 21
    conv = ConvSizes("f32", 2, in_channels // groups, out_channels // groups, size, window)
    weight = torch.randn(out_channels, in_channels // groups, *window.size)
    layouts = channels_last(out_channels, conv.out_size), channels_last(in_channels, size)
    steps = input_gradient(InputGradient("gradient", conv, groups, weight.stride(), *layouts), target)

    def emit(module: Module) -> None:
        for kernel, pack in steps:
            emit_conv(module, kernel)
            emit_pack(module, pack)

    call = compiled(target, emit)
    gradient = torch.randn(2, out_channels, *conv.out_size)
    memory = gradient.permute(0, 2, 3, 1).contiguous()
    out, whole = guarded(2, *size, in_channels)
    for kernel, pack in steps:
        packed = torch.full((groups * kernel.packed_group,), torch.nan)
        call(pack.name, packed, weight, begin=0, end=pack.tile_count)
        call(kernel.name, out, memory, packed, begin=0, end=kernel.tile_count)
    options = (window.stride, window.padding, window.dilation, groups)
    eager = conv2d_input((2, in_channels, *size), weight, gradient, *options)
    exact = conv2d_input((2, in_channels, *size), weight.double(), gradient.double(), *options)
    assert_as_exact_as_eager(out.permute(0, 3, 1, 2), eager, exact)
    assert_untouched(whole)
