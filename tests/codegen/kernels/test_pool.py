"""Poolings equal torch's in both layouts, for any window, and with indices, however the tiles are split."""

from dataclasses import replace

import pytest
import torch
from tests.codegen.kernel_cases import assert_untouched, compiled, guarded, targets
from torch.nn import functional

from weft.codegen.kernels.pool import emit_pool
from weft.plan.kernels.images import Images, ImageWindow
from weft.plan.kernels.pool import PoolKernel, choose_pool_schedule
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]
LAYOUTS = ("channels_last", "contiguous")
WINDOWS = {
    "2x2": (ImageWindow((2, 2), (2, 2)), False),
    "3x3 stride 2 padded": (ImageWindow((3, 3), (2, 2), (1, 1)), False),
    "3x3 stride 1 padded": (ImageWindow((3, 3), (1, 1), (1, 1)), False),
    "uneven, last window over the end": (ImageWindow((3, 2), (2, 3), (1, 0)), True),
    "5x4 stride 3": (ImageWindow((5, 4), (3, 3), (2, 2)), True),
}


def images(channels: int, size: tuple[int, int], layout: str) -> Images:
    rows, columns = size
    if layout == "contiguous":
        return Images(rows * columns * channels, columns, 1, rows * columns)
    return Images(rows * columns * channels, columns * channels, channels, 1)


def pooling(target: Target, x: torch.Tensor, expected: torch.Tensor, window: ImageWindow, layout: str) -> PoolKernel:
    count, channels = x.shape[:2]
    in_size, out_size = (x.shape[2], x.shape[3]), (expected.shape[2], expected.shape[3])
    element = "f32" if x.dtype == torch.float32 else "f64"
    input_layout = images(channels, in_size, layout)
    return PoolKernel(
        name="pool",
        element=element,
        kind="max",
        images=count,
        channels=channels,
        in_size=in_size,
        out_size=out_size,
        window=window,
        input=input_layout,
        output=images(channels, out_size, layout),
        schedule=choose_pool_schedule(element, channels, (in_size, out_size), input_layout, target),
    )


def run(target: Target, kernel: PoolKernel, x: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the outputs and the indices, which are zeros if there are none."""
    shape = (kernel.images, *kernel.out_size, kernel.channels)
    if layout == "contiguous":
        shape = (kernel.images, kernel.channels, *kernel.out_size)
    out, whole = guarded(*shape, dtype=x.dtype)
    indices = torch.zeros(shape, dtype=torch.int64)
    memory = x.permute(0, 2, 3, 1).contiguous() if layout == "channels_last" else x.contiguous()
    call = compiled(target, lambda module: emit_pool(module, kernel))
    tensors = (out, indices, memory) if kernel.indices else (out, memory)
    for tile in reversed(range(kernel.tile_count)):
        call("pool", *tensors, begin=tile, end=tile + 1)
    assert_untouched(whole)
    return (out, indices) if layout == "contiguous" else (out.permute(0, 3, 1, 2), indices.permute(0, 3, 1, 2))


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window, ceil", WINDOWS.values(), ids=WINDOWS)
def test_maxima_and_their_indices_equal_max_pool2d(
    target: Target, layout: str, window: ImageWindow, ceil: bool
) -> None:
    x = torch.randn(2, 37, 9, 41)
    x[0, :, 3, 5] = torch.nan
    x[1, :, :, 30:] = -torch.inf
    expected, places = functional.max_pool2d(
        x, window.size, window.stride, window.padding, ceil_mode=ceil, return_indices=True
    )
    kernel = replace(pooling(target, x, expected, window, layout), indices=True)
    out, indices = run(target, kernel, x, layout)
    assert torch.equal(out.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(indices, places)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window, ceil", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("divide_by", ["padding too", "what is seen", "3"])
def test_means_equal_avg_pool2d(target: Target, layout: str, window: ImageWindow, ceil: bool, divide_by: str) -> None:
    count_padding, divisor = divide_by != "what is seen", 3 if divide_by == "3" else None
    x = torch.randn(1, 35, 9, 41)
    expected = functional.avg_pool2d(x, window.size, window.stride, window.padding, ceil, count_padding, divisor)
    kernel = pooling(target, x, expected, window, layout)
    kernel = replace(kernel, kind="mean", count_padding=count_padding, divisor=divisor)
    torch.testing.assert_close(run(target, kernel, x, layout)[0], expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 7), (9, 20)])
def test_adaptive_means_equal_adaptive_avg_pool2d(layout: str, size: tuple[int, int]) -> None:
    target = TARGETS[0]
    x = torch.randn(2, 70, 9, 20, dtype=torch.float64)
    expected = functional.adaptive_avg_pool2d(x, size)
    kernel = replace(pooling(target, x, expected, ImageWindow((0, 0)), layout), kind="mean", adaptive=True)
    torch.testing.assert_close(run(target, kernel, x, layout)[0], expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dilated_window_skips_places(layout: str) -> None:
    target = TARGETS[0]
    x = torch.randn(1, 17, 12, 50)
    window = ImageWindow((3, 3), (2, 1), (1, 1), (2, 3))
    expected, places = functional.max_pool2d(x, 3, (2, 1), 1, (2, 3), return_indices=True)
    kernel = replace(pooling(target, x, expected, window, layout), indices=True)
    out, indices = run(target, kernel, x, layout)
    assert torch.equal(out, expected)
    assert torch.equal(indices, places)


def test_no_image_gives_nothing() -> None:
    target = TARGETS[0]
    x = torch.randn(0, 3, 4, 4)
    kernel = pooling(target, x, x[:, :, ::2, ::2], ImageWindow((2, 2), (2, 2)), "contiguous")
    assert kernel.tile_count == 0
    run(target, kernel, x, "contiguous")
