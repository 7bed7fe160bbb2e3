"""Gradients of pooling need no operator of PyTorch's, and are what its give; windows side by side need no kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.codegen.kernel_cases import assert_as_exact_as_eager
from torch.nn import functional

import weft

APART: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "average": lambda x: functional.avg_pool2d(x, 2),
    "average, with a rest": lambda x: functional.avg_pool2d(x, 3),
    "average, by another number": lambda x: functional.avg_pool2d(x, 2, divisor_override=3),
    "largest": lambda x: functional.max_pool2d(x, 2),
    "largest, with a rest": lambda x: functional.max_pool2d(x, (2, 3)),
    "largest, to a size": lambda x: functional.adaptive_max_pool2d(x, (7, 4)),
    "average, to a size": lambda x: functional.adaptive_avg_pool2d(x, (1, 4)),
}
OVERLAPPING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "largest, overlapping": lambda x: functional.max_pool2d(x, 3, 2),
    "largest, padded": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "largest, dilated": lambda x: functional.max_pool2d(x, 2, 1, 1, 2),
    "largest of lines": lambda x: functional.max_pool1d(x[0], 3, 2, 1),
    "padded": lambda x: functional.avg_pool2d(x, 2, padding=1),
    "of what is seen": lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "overlapping, by another number": lambda x: functional.avg_pool2d(x, 3, 1, 1, divisor_override=4),
    "beyond the end": lambda x: functional.avg_pool2d(x, 3, ceil_mode=True),
}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    found = function(x)
    torch.manual_seed(1)
    found.backward(torch.randn(found.shape, dtype=torch.bfloat16).to(found.dtype))
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("name", [*APART, *OVERLAPPING])
def test_the_gradient_of_pooling_is_pytorchs(name: str) -> None:
    function = (APART | OVERLAPPING)[name]
    x = torch.randn(2, 3, 7, 8)
    torch.testing.assert_close(gradient(weft.hybridize(function), x), gradient(function, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=["f32", "f64", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 19])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_the_gradient_of_overlapping_windows_is_as_exact_as_pytorchs(
    name: str, channels: int, layout: str, dtype: torch.dtype
) -> None:
    function = OVERLAPPING[name]
    x = torch.randn(2, channels, 7, 18, dtype=dtype).contiguous(memory_format=LAYOUTS[layout])
    found, eager, exact = (
        gradient(*pair) for pair in ((weft.hybridize(function), x), (function, x), (function, x.double()))
    )
    assert found.dtype == dtype
    assert_as_exact_as_eager(found, eager, exact)


@pytest.mark.parametrize("name", [*APART, *OVERLAPPING])
def test_gradients_of_windows_need_no_operator_of_their_own(name: str) -> None:
    def differentiated(x: torch.Tensor) -> torch.Tensor:
        [found] = torch.autograd.grad((APART | OVERLAPPING)[name](x * 1).square().sum(), x)
        return found

    text = weft.program(differentiated, torch.randn(2, 3, 7, 8, requires_grad=True)).summary()
    assert "0 calls of PyTorch's operators" in text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("channels", [1, 20])
def test_the_largest_of_half_precision_needs_no_operator(channels: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, channels, 9, 11).to(dtype)
    x[0, 0, 2, 2] = torch.nan
    x[1, :, 5:] = -torch.inf
    pool = lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True)  # noqa: E731  a formula
    found, expected = weft.hybridize(pool)(x), pool(x)
    assert torch.equal(found[0].nan_to_num(7), expected[0].nan_to_num(7))
    assert torch.equal(found[1], expected[1])
    assert "0 calls of PyTorch's operators" in weft.program(pool, x).summary()
