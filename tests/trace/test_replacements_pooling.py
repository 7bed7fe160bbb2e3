"""Pools of sequences give tensors of eager's layout, which is another one without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft

POOLS: list[Callable[[Tensor], Any]] = [
    lambda x: functional.max_pool1d(x, 3, 2, 1, ceil_mode=True),
    lambda x: torch.max_pool1d(x, kernel_size=2),
    lambda x: nn.MaxPool1d(3, 1, 1)(x) * 2,
    lambda x: functional.max_pool1d(x, 3, 2, 1, 1, return_indices=True)[0],
    lambda x: functional.max_pool1d(input=x[0], kernel_size=3),
    lambda x: functional.avg_pool1d(x, 3),
    lambda x: functional.adaptive_max_pool1d(x, 3),
    lambda x: functional.lp_pool1d(x, 2, 3),
]


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("pool", POOLS, ids=range(len(POOLS)))
def test_pools_of_sequences_have_eagers_layout(pool: Callable[[Tensor], Any], *, grad: bool) -> None:
    hybrid = weft.hybridize(lambda x: pool(x.transpose(1, 2)))
    for length in (9, 12, 12, 17):
        x = torch.randn(4, length, 8, generator=torch.Generator().manual_seed(length)).requires_grad_(grad)
        x.data[0, 2, 3] = torch.nan
        mine, theirs = hybrid(x), pool(x.transpose(1, 2))
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6, equal_nan=True)
        assert mine.stride() == theirs.stride()
