"""Max pooling of volumes: of each layer, then of the layers, with PyTorch's values, places and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import max_pool3d

import weft
from weft.plan.kernels.pool import PoolKernel

WINDOWS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 2},
    {"kernel_size": (1, 2, 2)},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
    {"kernel_size": (2, 3, 2), "stride": (1, 2, 3), "padding": (1, 1, 0), "ceil_mode": True},
)


def volume(*shape: int) -> torch.Tensor:
    """Give numbers of which many are equal, some no numbers and some infinite."""
    torch.manual_seed(sum(shape))
    x = torch.randn(shape).round()
    x.view(-1)[[7, 11]] = torch.nan
    x[..., 3] = -torch.inf
    return x


@pytest.mark.parametrize("shape", [(2, 3, 7, 9, 8), (3, 6, 5, 7)], ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_largest_of_a_volume_and_its_place_are_those_of_eager(
    window: dict[str, Any], shape: tuple[int, ...]
) -> None:
    def pooled(x: torch.Tensor) -> Any:
        return max_pool3d(x, **window, return_indices=True)

    x = volume(*shape)
    for found, expected in zip(weft.hybridize(pooled)(x), pooled(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_its_gradient_is_that_of_eager(window: dict[str, Any]) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return max_pool3d(x, **window).square().sum()

    x, y = (torch.randn(2, 3, 7, 9, 8, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    loss(x).backward()
    weft.hybridize(loss)(y).backward()
    torch.testing.assert_close(y.grad, x.grad)


def test_a_volume_is_pooled_in_machine_code() -> None:
    x = torch.randn(1, 4, 6, 8, 8)

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return max_pool3d(x, 2)

    (region,) = weft.program(pooled, x).plan.regions
    assert sum(isinstance(call.kernel, PoolKernel) for call in region.calls) == 2
