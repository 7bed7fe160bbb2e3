"""Images of sizes that vary, resampled and pooled, and bags of words: eager's numbers, by kernels of ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from bench.general import general_alone
from torch import nn
from torch.nn import functional

import weft

SIDES = ((9, 14), (12, 16), (5, 5), (7, 16), (12, 6), (11, 13), (4, 9))
Call = Callable[..., torch.Tensor]


def agrees(run: Call, arguments: Sequence[tuple[torch.Tensor, ...]], *, foreign: str) -> None:
    """Compare at all sizes; no program runs the operator by PyTorch."""
    with torch.no_grad(), general_alone():
        compiled = weft.hybridize(run)
        for given in arguments:
            found, right = compiled(*given), run(*given)
            assert found.stride() == right.stride()
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
        plans = [str(program.guarded.program.plan) for program in compiled.varying]
    assert plans
    assert not any(foreign in plan for plan in plans), compiled.varying.refusals


def images(channels: int = 3) -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return [(torch.randn(2, channels, *sides),) for sides in SIDES]


@pytest.mark.parametrize("factor", [2, 4, 1.5, 0.5])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
def test_images_are_resampled_by_a_factor(mode: str, factor: float) -> None:
    agrees(lambda x: functional.interpolate(x, scale_factor=factor, mode=mode).relu(), images(), foreign="upsample")


@pytest.mark.parametrize(
    "given", [{"mode": "nearest"}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}]
)
def test_images_are_resampled_to_the_size_of_others(given: dict[str, object]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        small = functional.max_pool2d(x, 2)
        return torch.cat([x, functional.interpolate(small, size=x.shape[2:], **given)], 1)

    agrees(run, images(), foreign="upsample")


MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "trilinear": (3,),
}


@pytest.mark.parametrize(("mode", "rank"), [(mode, rank) for mode, ranks in MODES.items() for rank in ranks])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_factor_that_gives_as_many_or_twice_as_many_elements(mode: str, rank: int, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    for factor, sides in itertools.product((1.1, 1.3, 2.0, 2.1, 2.3, 1.7), ((2, 3, 5), (4, 8, 7), (9, 2, 4))):
        x = torch.randn(2, 3, *sides[:rank], dtype=dtype, requires_grad=True)
        same = x.detach().clone().requires_grad_()

        def run(x: torch.Tensor, factor: float = factor) -> torch.Tensor:
            return functional.interpolate(x, scale_factor=factor, mode=mode) * 2

        found, right = weft.hybridize(run)(same), run(x)
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
        weight = torch.randn_like(right)
        found.backward(weight)
        right.backward(weight)
        torch.testing.assert_close(same.grad, x.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [1.1, 2.1])
def test_images_of_which_some_sizes_are_as_many_or_twice_as_many(factor: float) -> None:
    sides = ((9, 14), (12, 16), (5, 5), (4, 8), (7, 6), (11, 13))
    given = [(torch.randn(2, 3, *pair),) for pair in sides]
    for mode in ("nearest", "bilinear"):
        agrees(
            lambda x, mode=mode: functional.interpolate(x, scale_factor=factor, mode=mode), given, foreign="upsample"
        )


def test_what_is_resampled_is_computed_as_far_as_there_are_images() -> None:
    layer = nn.Conv2d(8, 16, 3, padding=1)

    def run(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(layer(x), size=(x.shape[2] * 2 + 1, x.shape[3] + 3))

    with torch.no_grad(), general_alone():
        compiled = weft.hybridize(run)
        for sides in ((30, 41), (40, 52), (17, 60), (9, 9)):
            x = torch.randn(1, 8, *sides)
            torch.testing.assert_close(compiled(x), run(x), rtol=1e-4, atol=1e-4)
        (program,) = compiled.varying
    calls = [call for region in program.guarded.program._forward().regions for call in region.plan.calls]
    images = [call for call in calls if type(call.kernel).__name__ in ("ConvKernel", "WinogradKernel")]
    assert images
    assert all(call.ends for call in images)


def test_rows_are_resampled() -> None:
    torch.manual_seed(1)
    rows = [(torch.randn(3, 4, length),) for length in (9, 12, 5, 1, 7, 11)]
    agrees(lambda x: functional.interpolate(x * 2, scale_factor=3, mode="linear"), rows, foreign="upsample")
    agrees(lambda x: functional.interpolate(x * 2, size=10, mode="nearest"), rows, foreign="upsample")


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_a_size_that_varies_are_a_dimension(mode: str) -> None:
    torch.manual_seed(2)
    bags = nn.EmbeddingBag(50, 8, mode=mode)
    words = [(torch.randint(50, sizes),) for sizes in ((3, 7), (5, 9), (2, 3), (4, 8), (5, 2))]
    agrees(bags.forward, words, foreign="embedding_bag")
    rows = [(torch.randint(50, (count, 4)),) for count in (3, 6, 2, 5)]
    agrees(bags.forward, rows, foreign="embedding_bag")


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.MaxPool2d(2, dilation=2), nn.AvgPool2d(3, 1)]
)
@pytest.mark.parametrize("channels", [3, 32])
def test_windows_at_borders_that_vary(pool: nn.Module, channels: int) -> None:
    torch.manual_seed(3)
    first = nn.Conv2d(3, channels, 1)
    sides = ((9, 14), (40, 70), (5, 5), (7, 66), (33, 4), (37, 21), (24, 48))
    given = [(torch.randn(2, 3, *sides),) for sides in sides]
    agrees(lambda x: pool(x * 2), given, foreign="pool2d")
    agrees(lambda x: pool(first(x)), given, foreign="pool2d")


def test_results_of_one_row_or_column_are_of_the_same_program() -> None:
    pool, first = nn.MaxPool2d(2, dilation=2), nn.Conv2d(3, 4, 1)
    with torch.no_grad(), general_alone():
        net = weft.hybridize(lambda x: pool(first(x)))
        for sides in ((9, 14), (40, 70), (33, 4), (3, 20), (4, 3)):
            net(torch.randn(2, 3, *sides))
        assert len(list(net.varying)) == 1
