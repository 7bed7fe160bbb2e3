"""Gradients of pooling whose windows lie side by side become elementwise ops, and are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import weft

APART: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "average": lambda x: functional.avg_pool2d(x, 2),
    "average, with a rest": lambda x: functional.avg_pool2d(x, 3),
    "average, by another number": lambda x: functional.avg_pool2d(x, 2, divisor_override=3),
    "largest": lambda x: functional.max_pool2d(x, 2),
    "largest, with a rest": lambda x: functional.max_pool2d(x, (2, 3)),
}
OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "overlapping": lambda x: functional.max_pool2d(x, 3, 2),
    "padded": lambda x: functional.avg_pool2d(x, 2, padding=1),
    "beyond the end": lambda x: functional.avg_pool2d(x, 3, ceil_mode=True),
}


def gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    found = function(x)
    torch.manual_seed(1)
    found.backward(torch.randn_like(found))
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("name", [*APART, *OTHERS])
def test_the_gradient_of_pooling_is_pytorchs(name: str) -> None:
    function = (APART | OTHERS)[name]
    x = torch.randn(2, 3, 7, 8)
    torch.testing.assert_close(gradient(weft.hybridize(function), x), gradient(function, x))


@pytest.mark.parametrize("name", APART)
def test_windows_side_by_side_need_no_operator_of_their_own(name: str) -> None:
    def differentiated(x: torch.Tensor) -> torch.Tensor:
        [found] = torch.autograd.grad(APART[name](x * 1).square().sum(), x)
        return found

    text = weft.program(differentiated, torch.randn(2, 3, 7, 8, requires_grad=True)).summary()
    assert "0 calls of PyTorch's operators" in text
