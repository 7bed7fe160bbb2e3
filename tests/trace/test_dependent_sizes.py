"""Masks and counts that are the same at every run decide sizes, and no program is refused for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.api.agreement import assert_same
from torch.nn import functional

import weft
from weft.errors import UnsupportedError

EYE = torch.eye(4, dtype=torch.bool)


def pairs(x: torch.Tensor) -> torch.Tensor:
    """A contrastive loss: how alike rows are to all others."""
    rows = functional.normalize(x, dim=1)
    alike = rows @ rows.T
    others = alike[~torch.eye(len(x), dtype=torch.bool)].view(len(x), len(x) - 1)
    return torch.logsumexp(others, 1).mean()


def filled(x: torch.Tensor) -> torch.Tensor:
    """A mask that is written before it is used."""
    mask = torch.ones(len(x), len(x), dtype=torch.bool)
    mask.fill_diagonal_(False)
    return (x[:, :1] * x[:, 0]).masked_select(mask).view(len(x), -1)


def written(x: torch.Tensor) -> torch.Tensor:
    """Elements that a mask leaves are read, changed and put back."""
    y, mask = x.clone(), torch.arange(len(x)) % 2 == 0
    y[mask] *= 2
    y[:, torch.tensor([True, False, True])] += 1
    return y


CODE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pairs": pairs,
    "filled": filled,
    "written": written,
    "of each other": lambda x: x[torch.tensor([2, 0, 1])[torch.tensor([True, False, True])]],
    "between": lambda x: x[:, torch.tensor([True, False, True])][:, :, None] * 2,
    "places": lambda x: x[torch.nonzero(torch.arange(4) > 1).squeeze(1)],
    "spread": lambda x: torch.masked_select(x, torch.tensor([True, False, True])),
    "repeated": lambda x: x.repeat_interleave(torch.tensor([3, 0, 1, 2]), 0),
    "counted": lambda x: x * torch.bincount(torch.tensor([0, 2, 2])),
    "none": lambda x: x[torch.zeros(4, dtype=torch.bool)],
}


@pytest.mark.parametrize("name", CODE)
def test_what_a_known_mask_leaves_is_eagers(name: str) -> None:
    assert_same(CODE[name], torch.randn(4, 3))


@pytest.mark.parametrize("name", CODE)
def test_gradients_through_known_masks_are_eagers(name: str) -> None:
    x = torch.randn(4, 3, dtype=torch.float64)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    weft.hybridize(CODE[name])(one).sin().sum().backward()
    CODE[name](other).sin().sum().backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_a_mask_that_may_change_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="depends on the values"):
        weft.hybridize(lambda x: x[EYE])(torch.randn(4, 4))
    with pytest.raises(UnsupportedError, match="depends on the values"):
        weft.hybridize(lambda x: x[x > 0])(torch.randn(4))
