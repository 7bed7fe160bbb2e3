"""Steps that repeat take a short way; whatever changes between them is noticed there too."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest
import torch
from tests.api.step_agreement import assert_same_state, close, eager_step
from torch import nn, optim
from torch.autograd import forward_ad
from torch.nn import functional

import weft

Change = Callable[[nn.Module, optim.Optimizer], None]


class Scaled(nn.Module):
    """A network with an attribute that Python reads, and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        return self.second(torch.tanh(self.first(x)) * self.scale)


def _rate(_: nn.Module, optimizer: optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.2


def _option(_: nn.Module, optimizer: optim.Optimizer) -> None:
    optimizer.param_groups[0]["maximize"] = True


def _loaded(_: nn.Module, optimizer: optim.Optimizer) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    for entry in state["state"].values():
        for name in entry:
            entry[name] = entry[name] * 0.5
    optimizer.load_state_dict(state)


def _written(_: nn.Module, optimizer: optim.Optimizer) -> None:
    for entry in optimizer.state.values():
        if "step" in entry:
            entry["step"].fill_(100)


def _one_written(net: nn.Module, optimizer: optim.Optimizer) -> None:
    entry = optimizer.state[net.first.weight]
    if "step" in entry:
        entry["step"].fill_(100)


def _cleared(_: nn.Module, optimizer: optim.Optimizer) -> None:
    optimizer.state.clear()


def _frozen(net: nn.Module, _: optim.Optimizer) -> None:
    net.first.weight.requires_grad_(False)


def _attribute(net: nn.Module, _: optim.Optimizer) -> None:
    net.scale = 0.5


def _moved(net: nn.Module, _: optim.Optimizer) -> None:
    net.first.weight.data = net.first.weight.data.clone() * 0.5


def _fewer(_: nn.Module, optimizer: optim.Optimizer) -> None:
    # Its gradient eager would leave as it was, and Weft does not look at it.
    last = optimizer.param_groups[0]["params"].pop().requires_grad_(False)
    optimizer.state.pop(last, None)


def _replaced(net: nn.Module, optimizer: optim.Optimizer) -> None:
    before = net.second.bias
    net.second.bias = optimizer.param_groups[0]["params"][-1] = nn.Parameter(before.detach() * 0.5)
    if before in optimizer.state:
        optimizer.state[net.second.bias] = optimizer.state.pop(before)


def _grouped(net: nn.Module, optimizer: optim.Optimizer) -> None:
    last = optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": [last], "lr": 0.01})


CHANGES: dict[str, Change] = {
    "a rate": _rate,
    "an option": _option,
    "a loaded state": _loaded,
    "counts written in place": _written,
    "one count": _one_written,
    "a cleared state": _cleared,
    "a frozen parameter": _frozen,
    "an attribute of the module": _attribute,
    "a parameter's memory": _moved,
    "fewer parameters": _fewer,
    "a new group": _grouped,
    "another parameter": _replaced,
}


def network() -> nn.Module:
    torch.manual_seed(1)
    return Scaled().double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return torch.randn(4, 6).double(), torch.tensor([0, 2, 1, 0])


@pytest.mark.parametrize("make", [partial(optim.SGD, lr=0.1, momentum=0.9), partial(optim.Adam, lr=0.01)])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_steps_is_noticed(name: str, make: Callable[..., optim.Optimizer]) -> None:
    ours, eager = network(), network()
    optimizer, eager_optimizer = make(ours.parameters()), make(eager.parameters())
    step = weft.step(ours, functional.cross_entropy, optimizer)
    for turn in range(8):
        if turn == 5:
            assert step._steady is not None
            CHANGES[name](ours, optimizer)
            CHANGES[name](eager, eager_optimizer)
        found = step(*batch())
        close(found, eager_step(eager, functional.cross_entropy, eager_optimizer, batch()))
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)
    assert_same_state(optimizer, eager_optimizer)


def test_a_hook_that_comes_later_runs_and_one_that_goes_gives_the_step_back() -> None:
    ours, eager = network(), network()
    eager.load_state_dict(ours.state_dict())
    optimizer, eager_optimizer = optim.SGD(ours.parameters(), 0.1), optim.SGD(eager.parameters(), 0.1)
    step = weft.step(ours, functional.cross_entropy, optimizer, whole=False)
    hooks = []
    for turn in range(40):
        if turn == 5:
            hooks = [net.first.weight.register_hook(lambda gradient: gradient * 0.5) for net in (ours, eager)]
        if turn == 8:
            for hook in hooks:
                hook.remove()
        if turn in (5, 8):
            assert (step._steady is None) == (turn == 8)
        close(step(*batch()), eager_step(eager, functional.cross_entropy, eager_optimizer, batch()))
    assert step._steady is not None
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)


def test_a_step_hook_that_comes_later_runs() -> None:
    net = network()
    optimizer = optim.SGD(net.parameters(), 0.1)
    step = weft.step(net, functional.cross_entropy, optimizer)
    for _ in range(4):
        step(*batch())
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    step(*batch())
    assert seen == ["before"]


def test_an_argument_in_the_memory_of_a_parameter_is_noticed() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).sum()

    net = Added()
    step = weft.step(net, None, optim.SGD(net.parameters(), 0.5))
    for _ in range(4):
        step(torch.zeros(3, 3))
    assert step._steady is not None
    step(net.weight.detach())
    torch.testing.assert_close(net.weight.detach(), torch.full((3, 3), 0.5))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by which tangents are defined
def test_a_step_on_tensors_with_tangents_is_pythons() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.hidden = nn.Linear(2, 1), torch.zeros(1)

        def forward(self, given: list[torch.Tensor]) -> torch.Tensor:
            self.hidden = self.linear(given[0])
            return self.hidden.sum()

    net = Kept()
    step = weft.step(net, None, optim.SGD(net.parameters(), 0.1), whole=False)
    for _ in range(4):
        step([torch.ones(1, 2)])
    with forward_ad.dual_level():
        step([forward_ad.make_dual(torch.ones(1, 2), torch.ones(1, 2))])
        assert forward_ad.unpack_dual(net.hidden).tangent is not None


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by which tangents are defined
def test_a_whole_step_on_tensors_with_tangents_is_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 3))
    step = weft.step(net, functional.cross_entropy, optim.SGD(net.parameters(), 0.1), whole=True)
    with forward_ad.dual_level(), pytest.raises(weft.UnsupportedError, match="forward mode"):
        step(forward_ad.make_dual(torch.ones(1, 2), torch.ones(1, 2)), torch.tensor([1]))


def test_another_batch_size_and_back() -> None:
    net = network()
    step = weft.step(net, functional.cross_entropy, optim.Adam(net.parameters()))
    x, y = batch()
    for count in (4, 4, 4, 4, 2, 4, 4, 2, 2, 4, 4, 4):
        step(x[:count], y[:count])
    assert step.traces == 2


def test_steps_under_autocast_take_the_short_way_and_notice_another_dtype() -> None:
    nets = [Scaled() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [optim.SGD(net.parameters(), 0.1) for net in nets]
    step = weft.step(nets[0], functional.cross_entropy, optimizers[0])
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    modes = [torch.bfloat16] * 5 + [None] + [torch.float16] * 2 + [torch.bfloat16] * 2
    for number, dtype in enumerate(modes):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = step(x, y)
            expected = functional.cross_entropy(nets[1](x), y)
        optimizers[1].zero_grad()
        expected.backward()
        optimizers[1].step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-2, atol=1e-3)
        assert step._steady is not None or number != 4
    assert step.traces == 3


def test_the_optimizers_numbers_become_a_tensor_again_only_when_they_change() -> None:
    nets = [network() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [optim.SGD(net.parameters(), 0.1) for net in nets]
    step = weft.step(nets[0], functional.cross_entropy, optimizers[0])
    x, y = batch()
    made: list[str] = []

    def watch(frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and called is torch.tensor:
            made.append(frame.f_code.co_filename)

    rates = [0.1] * 4 + [0.2, 0.2, 0.1, 0.1, 0.1]
    for number, rate in enumerate(rates):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        if number == 4:
            assert step._steady is not None
        sys.setprofile(watch if number >= 4 else None)
        try:
            step(x, y)
        finally:
            sys.setprofile(None)
        eager_step(nets[1], functional.cross_entropy, optimizers[1], (x, y))
    assert len(made) == 2
    for found, expected in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(found, expected)
