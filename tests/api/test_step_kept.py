"""Tensors that a step keeps in Python carry a gradient as eager's do, to a graph that the step has used up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn

import weft
from weft.errors import WeftError


class Net(nn.Module):
    def __init__(self, keep: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.keep = keep
        self.last: Any = None
        self.items: list[Any] = []
        self.table: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x)
        self.keep(self, h)
        return h.tanh()


def attribute(net: Net, h: torch.Tensor) -> None:
    net.last = h * 2


def same_as_result(net: Net, h: torch.Tensor) -> None:
    net.last = h


def detached(net: Net, h: torch.Tensor) -> None:
    net.last = h.detach()


def listed(net: Net, h: torch.Tensor) -> None:
    net.items.append(h + 1)


def in_table(net: Net, h: torch.Tensor) -> None:
    net.table["h"] = [h, {"again": h}]


def view(net: Net, h: torch.Tensor) -> None:
    net.last = h[0], h.t()


def view_of_parameter(net: Net, h: torch.Tensor) -> None:
    net.last = net.inner.weight[0]


def parameter_itself(net: Net, h: torch.Tensor) -> None:
    net.last = net.inner.weight


def whole_numbers(net: Net, h: torch.Tensor) -> None:
    net.last = (h > 0), h.argmax(1)


def without_gradient(net: Net, h: torch.Tensor) -> None:
    with torch.no_grad():
        net.last = h * 3


def used_later_detached(net: Net, h: torch.Tensor) -> None:
    if net.last is not None:
        net.table["change"] = (h - net.last.detach()).norm()
    net.last = h


def of_argument(net: Net, h: torch.Tensor) -> None:
    net.last = torch.zeros(2)


KEEPS = [
    attribute, same_as_result, detached, listed, in_table, view, view_of_parameter, parameter_itself, whole_numbers,
    without_gradient, used_later_detached, of_argument,
]  # fmt: skip


@pytest.mark.parametrize("keep", KEEPS, ids=lambda keep: keep.__name__)
def test_kept_tensors_require_gradients_as_eager_has_them(keep: Callable[[Any, torch.Tensor], Any]) -> None:
    def make() -> Work:
        torch.manual_seed(0)
        return Work(Net(keep), [((torch.randn(2, 3),), {}) for _ in range(4)])

    assert_every_way(make, "step")


def trained(keep: Callable[[Any, torch.Tensor], Any]) -> tuple[Net, Any]:
    net = Net(keep)
    return net, weft.step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))


def test_a_backward_from_a_kept_tensor_says_that_its_graph_is_gone() -> None:
    net, step = trained(attribute)
    step(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="second time"):
        net.last.sum().backward()


def test_a_step_whose_gradient_would_go_on_into_an_earlier_one_is_refused_where_eager_raises() -> None:
    def keep(net: Net, h: torch.Tensor) -> None:
        if net.last is not None:
            h.add_(net.last)
        net.last = h.tanh()

    _, step = trained(keep)
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    step(x, y)
    with pytest.raises((RuntimeError, WeftError), match="second time"):
        step(x, y)
