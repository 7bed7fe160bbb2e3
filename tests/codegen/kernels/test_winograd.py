"""Winograd's way of convolution equals conv2d as exactly as promised, at odd sizes, however the tiles are split."""

from collections.abc import Callable

import pytest
import torch
from tests.codegen.kernel_cases import assert_as_exact_as_eager, assert_untouched, compiled, guarded, targets
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input

from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.winograd import emit_winograd, emit_winograd_stage, emit_winograd_weights
from weft.codegen.llvm.module import Module
from weft.plan.kernels.conv import ConvSizes
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.gemm import Epilogue, EpilogueOperand
from weft.plan.kernels.images import Images, ImageWindow
from weft.plan.kernels.winograd import (
    PRODUCTS,
    WinogradKernel,
    WinogradStage,
    choose_winograd,
    winograd_product,
    winograd_weights,
)
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]


def channels_last(channels: int, size: tuple[int, int]) -> Images:
    return Images(size[0] * size[1] * channels, size[1] * channels, channels, 1)


def winograd(target: Target, sizes: ConvSizes, block: int, epilogue: Epilogue) -> WinogradKernel:
    return WinogradKernel(
        name="conv",
        element=sizes.element,
        images=sizes.images,
        in_channels=sizes.in_channels,
        out_channels=sizes.out_channels,
        in_size=sizes.in_size,
        padding=sizes.window.padding,
        input=channels_last(sizes.in_channels, sizes.in_size),
        output=channels_last(sizes.out_channels, sizes.out_size),
        epilogue=epilogue,
        block=block,
        product=winograd_product("product", sizes, block, target),
    )


def strides_of(weight: torch.Tensor) -> tuple[int, int, int, int]:
    out, into, row, column = weight.stride()
    return out, into, row, column


def run(target: Target, kernel: WinogradKernel, out: torch.Tensor, *inputs: torch.Tensor, staged: bool = False) -> None:
    """Transform and pack the weights tile by tile, then compute tile by tile, or stage after stage."""
    x, weight, *rest = inputs
    prepare = winograd_weights(kernel, "prepare", strides_of(weight))
    call = compiled(
        target,
        (lambda module: emit_stages(module, kernel)) if staged else (lambda module: emit_winograd(module, kernel)),
        lambda module: emit_winograd_weights(module, prepare),
    )
    packed, whole = guarded(PRODUCTS * prepare.packed_size)
    for tile in reversed(range(prepare.tile_count)):
        call("prepare", packed, weight, begin=tile, end=tile + 1)
    if staged:
        run_stages(call, kernel, (out, x, packed, *rest))
    for tile in () if staged else reversed(range(kernel.tile_count)):
        call("conv", out, x, packed, *rest, begin=tile, end=tile + 1)
    assert_untouched(whole)


def emit_stages(module: Module, kernel: WinogradKernel) -> None:
    emit_winograd_stage(module, WinogradStage("to_patches", kernel, "patches"))
    emit_winograd_stage(module, WinogradStage("to_pixels", kernel, "pixels"))
    emit_gemm(module, kernel.product)


def run_stages(call: Callable[..., None], kernel: WinogradKernel, tensors: tuple[torch.Tensor, ...]) -> None:
    out, x, packed, *rest = tensors
    patches, products = (
        torch.full((PRODUCTS, kernel.block, channels), torch.nan)
        for channels in (kernel.in_channels, kernel.out_channels)
    )
    tiles = WinogradStage("to_pixels", kernel, "pixels").tile_count
    for tile in reversed(range(tiles)):
        call("to_patches", patches, x, begin=tile, end=tile + 1)
    call("product", products, patches, packed, begin=0, end=kernel.product.tile_count)
    call("to_pixels", out, products, *rest, begin=0, end=1)
    call("to_pixels", out, products, *rest, begin=1, end=tiles)


def test_stages_give_the_same_bits_as_blocks() -> None:
    target, size = TARGETS[0], (9, 11)
    sizes = ConvSizes("f32", 2, 40, 24, size, ImageWindow((3, 3), padding=(1, 1)))
    bias = Epilogue(bias=EpilogueOperand((), 0, 1))
    x, weight, shift = torch.randn(2, *size, 40), torch.randn(24, 40, 3, 3), torch.randn(24)
    in_blocks, in_stages = torch.empty(2, *size, 24), torch.empty(2, *size, 24)
    run(target, winograd(target, sizes, 7, bias), in_blocks, x, weight, shift)
    run(target, winograd(target, sizes, 60, bias), in_stages, x, weight, shift, staged=True)
    assert torch.equal(in_blocks, in_stages)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("size", [(4, 4), (5, 7), (8, 3), (11, 16)], ids=str)
@pytest.mark.parametrize("channels", [(16, 32), (33, 17)], ids=str)
def test_a_3x3_convolution_equals_conv2d(
    target: Target, padding: int, size: tuple[int, int], channels: tuple[int, int]
) -> None:
    sizes = ConvSizes("f32", 3, *channels, size, ImageWindow((3, 3), padding=(padding, padding)))
    kernel = winograd(target, sizes, 7, Epilogue(bias=EpilogueOperand((), 0, 1)))
    x, weight = torch.randn(3, channels[0], *size), torch.randn(channels[1], channels[0], 3, 3)
    bias = torch.randn(channels[1])
    out, whole = guarded(3, *kernel.out_size, channels[1])
    run(target, kernel, out, x.permute(0, 2, 3, 1).contiguous(), weight, bias)
    eager = conv2d(x, weight, bias, padding=padding)
    exact = conv2d(x.double(), weight.double(), bias.double(), padding=padding)
    assert_as_exact_as_eager(out.permute(0, 3, 1, 2), eager, exact)
    assert_untouched(whole)


def test_a_residual_is_added_before_relu() -> None:
    target, size = TARGETS[0], (7, 9)
    sizes = ConvSizes("f32", 1, 16, 20, size, ImageWindow((3, 3), padding=(1, 1)))
    body = (Instruction("add", (0, 1), "f32"), Instruction("relu", (2,), "f32"))
    kernel = winograd(target, sizes, 6, Epilogue(EpilogueOperand((), 0, 1), (EpilogueOperand((), 20, 1),), body))
    x, weight, bias = torch.randn(1, *size, 16), torch.randn(20, 16, 3, 3), torch.randn(20)
    residual = torch.randn(1, *size, 20)
    out, _ = guarded(1, *size, 20)
    run(target, kernel, out, x, weight, bias, residual)
    expected = conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=1).permute(0, 2, 3, 1) + residual
    torch.testing.assert_close(out, expected.relu(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("channels", [64, 128, 256])
def test_the_error_is_at_most_twice_that_of_eager(channels: int) -> None:
    target = TARGETS[0]
    sizes = ConvSizes("f32", 1, channels, channels, (8, 8), ImageWindow((3, 3), padding=(1, 1)))
    kernel = winograd(target, sizes, choose_winograd(sizes, target)[1], Epilogue())
    x, weight = torch.randn(1, channels, 8, 8).relu(), torch.randn(channels, channels, 3, 3)
    out, _ = guarded(1, 8, 8, channels)
    run(target, kernel, out, x.permute(0, 2, 3, 1).contiguous(), weight)
    exact = conv2d(x.double(), weight.double(), padding=1)
    eager_error = (conv2d(x, weight, padding=1) - exact).square().mean().sqrt()
    error = (out.permute(0, 3, 1, 2) - exact).square().mean().sqrt()
    assert error <= 2 * eager_error + 1e-7 * exact.square().mean().sqrt()


@pytest.mark.parametrize(
    "sizes",
    [
        ConvSizes("f32", 1, 64, 64, (14, 14), ImageWindow((3, 3), stride=(2, 2))),
        ConvSizes("f32", 1, 64, 64, (14, 14), ImageWindow((5, 5))),
        ConvSizes("f32", 1, 3, 64, (14, 14), ImageWindow((3, 3))),
        ConvSizes("f32", 1, 64, 64, (4, 4), ImageWindow((3, 3))),
        ConvSizes("f32", 32, 4096, 256, (7, 7), ImageWindow((3, 3), padding=(1, 1))),
    ],
    ids=["stride", "window", "few channels", "few pixels", "many windows at edges"],
)
def test_it_is_not_chosen_where_it_cannot_pay(sizes: ConvSizes) -> None:
    assert choose_winograd(sizes, TARGETS[0]) == ("direct", 0)


def test_weights_turned_around_give_the_gradient_of_the_input() -> None:
    target, size = TARGETS[0], (8, 9)
    sizes = ConvSizes("f32", 1, 24, 16, size, ImageWindow((3, 3), padding=(1, 1)))
    kernel = winograd(target, sizes, 20, Epilogue())
    weight, gradient = torch.randn(24, 16, 3, 3), torch.randn(1, 24, *size)
    turned = winograd_weights(kernel, "prepare", (9, 144, -3, -1), 8)
    plain = winograd_weights(kernel, "plain", (216, 9, 3, 1))
    call = compiled(
        target,
        lambda module: emit_winograd_weights(module, turned),
        lambda module: emit_winograd_weights(module, plain),
    )
    packed, expected = (torch.empty(PRODUCTS * plain.packed_size) for _ in range(2))
    call("prepare", packed, weight, begin=0, end=turned.tile_count)
    call("plain", expected, weight.transpose(0, 1).flip(2, 3).contiguous(), begin=0, end=plain.tile_count)
    assert torch.equal(packed, expected)
    out, _ = guarded(1, *size, 16)
    around = weight.transpose(0, 1).flip(2, 3).contiguous()
    run(target, kernel, out, gradient.permute(0, 2, 3, 1).contiguous(), around)
    torch.testing.assert_close(
        out.permute(0, 3, 1, 2), conv2d_input((1, 16, *size), weight, gradient, padding=1), atol=1e-4, rtol=1e-4
    )
