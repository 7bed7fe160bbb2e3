"""Steps that Python makes, as no program can, leave what PyTorch's loop leaves, and hardly cost more."""

from __future__ import annotations

import copy
import importlib
import random

import pytest
import torch
from torch import nn

import weft
from weft.api.step_training import buffers_of


class Drawing(nn.Module):
    """Draws numbers by which it chooses columns, as negative sampling does."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12))
        self.fails = False

    def forward(self, x):
        x = self.inside(x)
        if self.fails:
            raise ValueError("no")
        return x[:, sorted(random.sample(range(12), 6))]


def pair():
    net = Drawing()
    other = copy.deepcopy(net)
    return net, other, *(torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (net, other))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")], ids=["one", "many"])
def test_they_train_as_pytorchs_loop_does(loss: nn.Module) -> None:
    net, other, optimizer, eager = pair()
    step = weft.step(other, loss, eager, whole=False)
    for number in range(12):
        x, y = torch.randn(5, 8), torch.randint(6, (5,))
        random.seed(number)
        optimizer.zero_grad()
        expected = loss(net(x), y)
        expected.backward(torch.ones_like(expected))
        optimizer.step()
        random.seed(number)
        found = step(x, y)
        torch.testing.assert_close(found, expected.detach())
        assert not found.requires_grad
    torch.testing.assert_close(other.state_dict(), net.state_dict())


@pytest.mark.filterwarnings("ignore")
def test_one_that_fails_leaves_buffers_as_they_were_each_time() -> None:
    _, net, _, optimizer = pair()
    step = weft.step(net, nn.CrossEntropyLoss(), optimizer, whole=False)
    x, y = torch.randn(5, 8), torch.randint(6, (5,))
    for _ in range(3):
        for _ in range(6):
            step(x, y)
        before = copy.deepcopy(net.state_dict())
        net.fails = True
        with pytest.raises(ValueError, match="no"):
            step(x, y)
        net.fails = False
        torch.testing.assert_close(net.state_dict(), before)
        net.inside[1] = nn.BatchNorm1d(12)  # other buffers than those before


@pytest.mark.filterwarnings("ignore")
def test_where_there_can_be_no_program_ever_more_go_by_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("weft.api.step")
    monkeypatch.setattr(module, "UNSEEN", 0.0)  # so that each is looked at
    _, net, _, optimizer = pair()
    step = weft.step(net, nn.CrossEntropyLoss(), optimizer, whole=False)
    x, y, times = torch.randn(5, 8), torch.randint(6, (5,)), []
    for _ in range(9):
        step(x, y)
        times.append(step._times)
    assert times[-1] == module.MOST_TIMES
    assert times == sorted(times)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_buffers_are_found_once_each_in_shared_and_scripted_modules() -> None:
    norm = nn.BatchNorm1d(4)
    net = nn.Sequential(norm, nn.Sequential(norm, nn.BatchNorm1d(4, track_running_stats=False)))
    net.register_buffer("own", torch.zeros(2))
    net.register_buffer("none", None)
    assert {id(one) for one in buffers_of([net, norm])} == {id(one) for one in net.buffers()}
    assert len(buffers_of([net, norm])) == 4
    scripted = torch.jit.script(nn.BatchNorm1d(4))
    assert len(buffers_of([scripted])) == len(list(scripted.buffers()))
