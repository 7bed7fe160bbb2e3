"""Gradients of poolings equal torch's in both layouts, for any window, however the tiles are split."""

from dataclasses import replace

import pytest
import torch
from tests.codegen.kernel_cases import assert_untouched, compiled, guarded, targets
from tests.codegen.kernels.test_pool import IDS, LAYOUTS, WINDOWS, images
from torch.nn import functional

from weft.codegen.kernels.pool import emit_pool_gradient
from weft.plan.kernels.images import ImageWindow
from weft.plan.kernels.pool import PoolGradientKernel, choose_pool_gradient_schedule
from weft.target import Target

TARGETS = targets()
CHANNELS_LAST = (0, 2, 3, 1)
PLAIN = (0, 1, 2, 3)
BACK = (0, 3, 1, 2)


def gradient_of(
    target: Target, x: torch.Tensor, pooled: torch.Tensor, window: ImageWindow, layout: str
) -> PoolGradientKernel:
    count, channels = x.shape[:2]
    in_size, out_size = (x.shape[2], x.shape[3]), (pooled.shape[2], pooled.shape[3])
    element = "f32" if x.dtype == torch.float32 else "f64"
    output, given = images(channels, in_size, layout), images(channels, out_size, layout)
    schedule = choose_pool_gradient_schedule(element, channels, in_size[1], output, target)
    return PoolGradientKernel(
        "gradient", element, count, channels, in_size, out_size, window, output, given, given,
        replace(schedule, tile_lines=2),
    )  # fmt: skip


def run(target: Target, kernel: PoolGradientKernel, *given: torch.Tensor) -> torch.Tensor:
    """Give the gradient, computed tile by tile from the last one on."""
    beside = kernel.output.channel == 1
    order = CHANNELS_LAST if beside else PLAIN
    shape = [(kernel.images, kernel.channels, *kernel.in_size)[dimension] for dimension in order]
    out, whole = guarded(*shape, dtype=given[0].dtype)
    memory = [tensor.permute(order).contiguous() for tensor in given]
    call = compiled(target, lambda module: emit_pool_gradient(module, kernel))
    for tile in reversed(range(kernel.tile_count)):
        call("gradient", out, *memory, begin=tile, end=tile + 1)
    assert_untouched(whole)
    return out.permute(BACK) if beside else out


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window, ceil", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_what_the_largest_get_equals_pytorchs(
    target: Target, layout: str, window: ImageWindow, ceil: bool, dtype: torch.dtype
) -> None:
    x = torch.randn(2, 37, 9, 41, dtype=dtype)
    x[0, :, 3, 5:7] = torch.nan
    x[1, :, :, 30:] = 1.0  # the first of those that are equal gets all
    x.requires_grad_()
    size = (window.size, window.stride, window.padding)
    pooled, indices = functional.max_pool2d(x, *size, ceil_mode=ceil, return_indices=True)
    gradient = torch.randn_like(pooled)
    gradient[0, 0, 0, 0] = torch.inf
    [expected] = torch.autograd.grad(pooled, x, gradient)
    found = run(target, gradient_of(target, x, pooled, window, layout), gradient, indices)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window, ceil", WINDOWS.values(), ids=WINDOWS)
def test_what_all_get_that_a_window_sees_equals_the_gradient_of_its_sum(
    target: Target, layout: str, window: ImageWindow, ceil: bool
) -> None:
    x = torch.randn(1, 35, 9, 41, requires_grad=True)
    sums = functional.avg_pool2d(x, window.size, window.stride, window.padding, ceil, divisor_override=1)
    gradient = torch.randn_like(sums)
    [expected] = torch.autograd.grad(sums, x, gradient)
    kernel = replace(gradient_of(target, x, sums, window, layout), indices=None)
    assert torch.equal(run(target, kernel, gradient), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dilated_window_gives_nothing_to_what_it_skips(layout: str) -> None:
    target, x = TARGETS[0], torch.randn(1, 17, 12, 50, requires_grad=True)
    window = ImageWindow((3, 3), (2, 1), (1, 1), (2, 3))
    pooled, indices = functional.max_pool2d(x, 3, (2, 1), 1, (2, 3), return_indices=True)
    gradient = torch.randn_like(pooled)
    [expected] = torch.autograd.grad(pooled, x, gradient)
    assert torch.equal(run(target, gradient_of(target, x, pooled, window, layout), gradient, indices), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_place_between_windows_gets_zero(layout: str) -> None:
    target, x = TARGETS[0], torch.randn(1, 3, 8, 8, requires_grad=True)
    sums = functional.avg_pool2d(x, 1, 3, divisor_override=1)
    kernel = replace(gradient_of(target, x, sums, ImageWindow((1, 1), (3, 3)), layout), indices=None)
    [expected] = torch.autograd.grad(sums.sum(), x)
    assert torch.equal(run(target, kernel, torch.ones_like(sums)), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_indices_outside_of_the_plane_are_nobodys(layout: str) -> None:
    target, x = TARGETS[0], torch.randn(1, 20, 8, 8)
    pooled = functional.max_pool2d(x, 3, 2)
    kernel = gradient_of(target, x, pooled, ImageWindow((3, 3), (2, 2)), layout)
    indices = torch.full(pooled.shape, -7, dtype=torch.int64)
    indices[0, 0, 0, 0] = 64
    assert not run(target, kernel, torch.ones_like(pooled), indices).any()


def test_no_image_gives_nothing() -> None:
    target, x = TARGETS[0], torch.randn(0, 3, 4, 4)
    kernel = gradient_of(target, x, x[:, :, ::2, ::2], ImageWindow((2, 2), (2, 2)), "contiguous")
    assert kernel.tile_count == 0
    assert run(target, kernel, x, x.long()).shape == x.shape
