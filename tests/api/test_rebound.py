"""Attributes of modules that a forward gives new tensors are, after each call of a program, what eager makes them."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients
from torch import nn
from torch.nn.utils import prune

import weft

pytestmark = pytest.mark.usefixtures("by_library")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weights = torch.softmax(self.queries(x) @ self.keys(x).transpose(1, 2), -1)
        return self.weights @ x


class Decoder(nn.Module):
    """Keeps what the chapter's decoders keep, and a state that it reads at the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self.register_buffer("average", torch.zeros(4))
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = {"in": x, "shape": tuple(x.shape), "weights": [None] * len(self.blocks)}
        for index, block in enumerate(self.blocks):
            x = block(x)
            self.seen["weights"][index] = block.weights
        self.average = 0.9 * self.average + 0.1 * x.detach().mean((0, 1))
        self.state = x if self.state is None else self.state.detach() / 2 + x
        return self.state


def kept(net: Any) -> list[Any]:
    return [net.average, net.state, net.seen["in"], *net.seen["weights"], *(block.weights for block in net.blocks)]


@pytest.fixture
def pair() -> tuple[Any, Any]:
    eager = Decoder()
    return eager, weft.hybridize(copy.deepcopy(eager))


def test_what_a_forward_keeps_is_what_eager_keeps_call_after_call(pair: tuple[Any, Any]) -> None:
    eager, net = pair
    for _ in range(4):
        x = torch.randn(2, 3, 4)
        assert torch.equal(net(x), eager(x))
        assert net.seen["in"] is x
        assert net.seen["shape"] == (2, 3, 4)
        for ours, theirs in zip(kept(net), kept(eager), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.requires_grad == theirs.requires_grad
        assert net.seen["weights"][1] is net.blocks[1].weights
    assert net.forward.traces == 2, "the first call found attributes that the others find there"


def test_a_loss_may_be_made_of_what_was_kept(pair: tuple[Any, Any]) -> None:
    found = []
    for net in pair:
        torch.manual_seed(1)
        for _ in range(3):
            loss = net(torch.randn(2, 3, 4)).sum() + net.blocks[0].weights.square().sum() + net.seen["weights"][1].sum()
            found.append(gradients(loss, list(net.parameters())))
    for theirs, ours in zip(found[:3], found[3:], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_was_kept_before_is_let_go() -> None:
    net = weft.hybridize(Attention())
    net.weights = torch.ones(1)
    before = weakref.ref(net.weights)
    net(torch.randn(2, 3, 4))  # traced while it is there
    gc.collect()
    assert before() is None


def test_a_registered_buffer_stays_registered(pair: tuple[Any, Any]) -> None:
    _, net = pair
    net(torch.randn(2, 3, 4))
    assert torch.equal(net.state_dict()["average"], net.average)
    net.load_state_dict(net.state_dict() | {"average": torch.full((4,), 5.0)})
    net(torch.zeros(2, 3, 4))
    assert net.average.tolist() == [4.5] * 4


def test_another_program_is_made_where_an_attribute_is_something_else(pair: tuple[Any, Any]) -> None:
    eager, net = pair
    x = torch.randn(2, 3, 4)
    for _ in range(2):
        for one in (net, eager):
            one(x)
            one(x)
            one.state = None
        assert torch.equal(net(x), eager(x))


@pytest.mark.parametrize("before", [True, False])
def test_pruned_modules_are_programs(before: bool) -> None:
    def trained(wrap: Callable[[nn.Module], nn.Module]) -> list[torch.Tensor]:
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        x = torch.randn(5, 6)
        if before:
            prune.l1_unstructured(net[0], "weight", amount=0.5)
        found = [wrap(net)(x)]
        if not before:
            prune.l1_unstructured(net[0], "weight", amount=0.5)
        for _ in range(3):
            net(x).sum().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
            found.append(net(x))
        prune.remove(net[0], "weight")
        return [*found, net(x)]

    for ours, theirs in zip(trained(weft.hybridize), trained(lambda net: net), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_the_forward_of_a_step_keeps_requires_a_gradient_as_in_eager() -> None:
    eager = Decoder()
    net = copy.deepcopy(eager)

    def loss_of(net: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        return lambda out, y: (out - y).square().mean() + net.blocks[1].weights.square().sum()

    loss, optimizer = loss_of(eager), torch.optim.SGD(eager.parameters(), 0.1)
    step = weft.step(net, loss_of(net), torch.optim.SGD(net.parameters(), 0.1))
    for _ in range(4):
        x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
        optimizer.zero_grad()
        expected = loss(eager(x), y)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, y), expected.detach())
        torch.testing.assert_close(net.state, eager.state.detach())
        torch.testing.assert_close(net.average, eager.average)
        assert net.state.requires_grad == eager.state.requires_grad


def test_a_graph_behind_an_argument_that_gets_no_gradient_is_left_alone() -> None:
    weight = torch.randn(3, requires_grad=True)
    spent = weight.exp()
    spent.sum().backward()
    weight.grad = None
    weft.hybridize(lambda w, h: (w * 2 + h.detach()).sum())(weight, spent).backward()
    assert torch.equal(weight.grad, torch.full((3,), 2.0))


def test_tensors_in_a_set_that_was_there_before_are_refused() -> None:
    class Collects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all: set[torch.Tensor] = set()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.all.add(x * 2)
            return x

    net = weft.hybridize(Collects())
    with pytest.raises(weft.UnsupportedError, match="keeps a tensor"):
        net(torch.ones(2))
    assert net.all == set()
