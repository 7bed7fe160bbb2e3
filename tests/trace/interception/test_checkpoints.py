"""Checkpoints of both kinds are traced, and give the gradients of eager."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as checkpoints

import weft
from weft.errors import UnsupportedError


class Net(nn.Module):
    def __init__(self, norm: nn.Module, **options: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), norm, nn.Dropout(0.3), nn.Tanh())
        self.outer, self.options = nn.Linear(4, 1), options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: torch.Tensor = self.outer(checkpoints.checkpoint(self.inner, x, **self.options))
        return found


OPTIONS: list[dict[str, Any]] = [{}, {"use_reentrant": True}, {"use_reentrant": False}]


def run(net: nn.Module, *, asks: bool) -> list[Any]:
    found: list[Any] = []
    for seed in range(3):
        torch.manual_seed(seed)
        net.zero_grad()
        x = torch.randn(5, 4, requires_grad=asks)
        result = net(x)
        result.sum().backward()
        found.append((result, x.grad, [one.grad for one in net.parameters()], [one.clone() for one in net.buffers()]))
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=["nothing said", "reentrant", "not reentrant"])
@pytest.mark.parametrize("asks", [True, False])
def test_gradients_are_those_of_eager(options: dict[str, Any], asks: bool) -> None:
    net = Net(nn.LayerNorm(4), **options)
    ours = weft.hybridize(copy.deepcopy(net), whole=True)
    torch.testing.assert_close(run(ours, asks=asks), run(net, asks=asks))
    assert type(checkpoints.CheckpointFunction) is type(torch.autograd.Function)


@pytest.mark.parametrize("options", OPTIONS[1:], ids=["reentrant", "not reentrant"])
def test_a_batch_norm_that_counts_twice_is_run_by_python(options: dict[str, Any]) -> None:
    net = Net(nn.BatchNorm1d(4), **options)
    with pytest.raises(UnsupportedError, match="the backward writes into a tensor"):
        run(weft.hybridize(copy.deepcopy(net), whole=True), asks=True)
    ours = weft.hybridize(copy.deepcopy(net), whole=False)
    torch.testing.assert_close(run(ours, asks=True), run(net, asks=True))
