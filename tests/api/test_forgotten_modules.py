"""A module, function or step that nobody keeps any more takes its programs with it."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weft


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2))


def trained(net: nn.Module, rows: int = 2) -> None:
    weft.hybridize(net)(torch.randn(rows, 4)).sum().backward()


def of_many_sizes(net: nn.Module) -> None:
    for rows in (2, 3, 5):
        trained(net, rows)


def without_backward(net: nn.Module) -> None:
    weft.hybridize(net)(torch.randn(2, 4))


def with_attributes(net: nn.Module) -> None:
    x = torch.randn(2, 4)
    x.origin = "here"  # type: ignore[attr-defined]
    weft.hybridize(net)(x).sum().backward()


def differentiated_twice(net: nn.Module) -> None:
    x = torch.randn(2, 4, requires_grad=True)
    (found,) = torch.autograd.grad(weft.hybridize(net)(x).sum(), x, create_graph=True)
    found.square().sum().backward()


def in_steps(net: nn.Module) -> None:
    step = weft.step(net, nn.functional.mse_loss, torch.optim.SGD(net.parameters(), 0.1))
    for _ in range(2):
        step(torch.randn(2, 4), torch.randn(2, 2))


USES: list[Callable[[nn.Module], Any]] = [
    trained,
    of_many_sizes,
    without_backward,
    with_attributes,
    differentiated_twice,
    in_steps,
]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_it_is_freed_after(use: Callable[[nn.Module], Any]) -> None:
    net = small()
    found = weakref.ref(net)
    use(net)
    del net
    gc.collect()
    assert found() is None
