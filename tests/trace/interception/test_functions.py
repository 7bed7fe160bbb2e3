"""Modules that are moved to where they are already stay; those that would change are refused and left alone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import nn

import weft
from weft.errors import UnsupportedError

Move = Callable[[nn.Module, torch.Tensor], nn.Module]
MOVES: dict[str, Move] = {
    "dtype": lambda net, x: net.to(x.dtype),
    "device": lambda net, x: net.to(x.device),
    "like": lambda net, x: net.to(x),
    "float": lambda net, _x: net.float(),
    "cpu": lambda net, _x: net.cpu(),
}


class Moves(nn.Module):
    """A model that moves a part of itself at each call."""

    def __init__(self, move: Move) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.move = move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.head = self.move(self.head, x)
        found: torch.Tensor = self.head(x)
        return found


@pytest.fixture(autouse=True, params=["at first", "after weights were packed"])
def watched(request: pytest.FixtureRequest) -> None:
    """From the first packed weight on, assignments to `.data` are watched: PyTorch's attribute is another one."""
    if request.param != "at first":
        with torch.no_grad():
            weft.hybridize(nn.Linear(64, 64))(torch.randn(8, 64))


@pytest.mark.parametrize("name", MOVES)
def test_a_module_that_is_there_already_stays(name: str) -> None:
    eager = Moves(MOVES[name])
    hybrid = weft.hybridize(deepcopy(eager))
    kept = [*hybrid.parameters()]
    for _ in range(3):
        x = torch.randn(5, 4)
        torch.testing.assert_close(hybrid(x), eager(x))
        (hybrid(x).sum() + hybrid(x).sin().sum()).backward()
        (eager(x).sum() + eager(x).sin().sum()).backward()
    for mine, theirs, before in zip(hybrid.parameters(), eager.parameters(), kept, strict=True):
        assert mine is before
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(hybrid.state_dict(), eager.state_dict())
    assert hybrid.forward.traces == 1


def test_a_module_that_would_change_is_refused_and_stays_as_it_was() -> None:
    net = Moves(lambda net, _x: net.double())
    before = {name: (tensor, tensor.clone()) for name, tensor in net.named_parameters()}
    with pytest.raises(UnsupportedError, match="replaces the memory") as caught:
        weft.hybridize(net)(torch.randn(5, 4))
    assert "test_functions.py" in (caught.value.where or "")
    for name, tensor in net.named_parameters():
        assert tensor is before[name][0]
        assert torch.equal(tensor, before[name][1])
