"""Parts of what is as large at any size: gaps in memory stay, though the largest part has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import weft

PARTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "columns": lambda x, y: (x * 2)[:, : len(y)],
    "columns from the second on": lambda x, y: (x * 2)[:, 1 : len(y)],
    "columns of what does not vary": lambda x, y: (x.sum() * torch.ones(5, 8))[:, : len(y)],
    "rows of what is turned": lambda x, y: functional.adaptive_avg_pool1d(x.T[None], 8)[0].T[: len(y)],
    "columns of what is turned": lambda x, y: (x[:6].T * 2)[:, : len(y)],
    "of three dimensions": lambda x, y: (x * 2).unflatten(1, (2, 4))[:, :, : len(y) // 2],
}


@pytest.mark.parametrize("carries", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("name", PARTS)
def test_parts_lie_as_in_eager(name: str, carries: bool) -> None:
    function = PARTS[name]
    hybrid = weft.hybridize(function)
    with torch.set_grad_enabled(carries):
        for rows, columns in ((9, 3), (12, 4), (17, 2), (17, 5), (20, 3), (33, 6), (40, 8)):
            x, y = torch.randn(rows, 8, requires_grad=True), torch.randn(columns)
            found, expected = hybrid(x, y), function(x, y)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
            if carries:
                weight = torch.randn_like(expected)
                ours, eagers = (torch.autograd.grad((one * weight).sum(), x)[0] for one in (found, expected))
                torch.testing.assert_close(ours, eagers)
                assert ours.stride() == eagers.stride()
    assert hybrid.traces <= 5, weft.explain(hybrid)
