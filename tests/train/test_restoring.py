"""Where one part refuses its state, the model and all other parts are as they were."""

from __future__ import annotations

import copy
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import SequentialSampler

import weft


class Part:
    """A part of a user's, which takes its state bit by bit."""

    def __init__(self, value: int) -> None:
        self.value, self.table, self.numbers, self.tensor = value, {"a": value}, [value], torch.full((2,), value)
        self.second = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "table": self.table, "numbers": self.numbers, "tensor": self.tensor, "bad": False}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
        self.table.update(state["table"])
        self.numbers[:] = state["numbers"]
        self.tensor.copy_(state["tensor"])
        self.added = 1
        if self.refuses():
            raise self.error
        self.second = state["value"]

    def refuses(self) -> bool:
        return False

    error: BaseException = RuntimeError("no, thank you")


class Refusing(Part):
    asked = 0

    def refuses(self) -> bool:
        self.asked += 1
        return self.asked == 1


class AlwaysRefusing(Part):
    def refuses(self) -> bool:
        return True


class WithoutState(Refusing):
    """Has no state before it was given one."""

    def state_dict(self) -> dict[str, Any]:
        if self.value == 9:
            raise RuntimeError("nothing here yet")
        return super().state_dict()


class OddError(Exception):
    """An error that is not Python's."""


class RefusingModel(nn.Sequential):
    """Refuses at its last child, when the first one was written."""

    refuses = False

    def load_state_dict(self, *args: Any, **keywords: Any) -> Any:
        found = super().load_state_dict(*args, **keywords)
        if self.refuses:
            self.refuses = False
            self.extra_attribute = 1
            raise ValueError("the model says no")
        return found


class RefusingOptimizer(torch.optim.SGD):
    refuses = False

    def load_state_dict(self, state_dict: Any) -> None:
        self.param_groups[0]["lr"] = 77.0
        super().load_state_dict(state_dict)
        if self.refuses:
            raise TypeError("the optimizer says no")


class Training:
    """A model and parts of every kind, after some steps."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = RefusingModel(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = RefusingOptimizer(self.net.parameters(), lr=0.1 * (seed + 1), momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2 + seed)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (seed + 3))
        self.generator = torch.Generator().manual_seed(seed)
        self.ema = nn.Linear(2, 2)
        self.part: Any = Part(seed)
        self.callback = weft.EarlyStop()
        self.callback.best = float(seed)
        for _ in range(seed + 1):
            self.scaler.scale(self.net(torch.randn(5, 3)).square().mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def parts(self) -> dict[str, Any]:
        names = ("optimizer", "scheduler", "scaler", "generator", "ema", "part", "callback")
        return {name: getattr(self, name) for name in names}

    def state(self) -> Any:
        """Everything that a user could notice, bit by bit."""
        part = {name: value for name, value in vars(self.part).items() if name != "asked"}
        return tree(
            [
                self.net.state_dict(),
                sorted(vars(self.net)),
                self.optimizer.state_dict(),
                {name: value for name, value in vars(self.scheduler).items() if name != "optimizer"}.keys(),
                self.scheduler.state_dict(),
                self.scaler.state_dict(),
                self.generator.get_state(),
                self.ema.state_dict(),
                part,
                vars(self.callback),
                random.getstate(),
                np.random.get_state(),
                torch.get_rng_state(),
            ]
        )


def tree(value: Any) -> Any:
    """Give values that compare bit by bit."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: tree(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [tree(item) for item in value]
    return copy.copy(value) if isinstance(value, (set, bytearray)) else value


def wrong_part(training: Training) -> None:
    training.part = Refusing(2)


def part_that_always_refuses(training: Training) -> None:
    training.part = AlwaysRefusing(2)


def part_without_state(training: Training) -> None:
    training.part = WithoutState(9)


def part_with_an_error_of_its_own(training: Training) -> None:
    training.part = Refusing(2)
    training.part.error = OddError("odd")


def interrupted_part(training: Training) -> None:
    training.part = Refusing(2)
    training.part.error = KeyboardInterrupt()


def part_out_of_memory(training: Training) -> None:
    training.part = Refusing(2)
    training.part.error = MemoryError()


def wrong_model(training: Training) -> None:
    training.net.refuses = True


def wrong_optimizer(training: Training) -> None:
    training.optimizer.refuses = True


def generator_of_another_kind(training: Training) -> None:
    training.generator = training.part


def module_that_refuses(training: Training) -> None:
    training.ema = RefusingModel(nn.Linear(2, 2))
    training.ema.refuses = True


REFUSALS: dict[Callable[[Training], None], type[BaseException]] = {
    wrong_part: weft.CheckpointError,
    part_that_always_refuses: weft.CheckpointError,
    part_without_state: weft.CheckpointError,
    part_with_an_error_of_its_own: OddError,
    interrupted_part: KeyboardInterrupt,
    part_out_of_memory: MemoryError,
    wrong_model: weft.CheckpointError,
    wrong_optimizer: weft.CheckpointError,
    module_that_refuses: weft.CheckpointError,
}


@pytest.mark.parametrize("order", ["as saved", "reversed"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: each.__name__)
def test_where_one_part_refuses_all_are_as_they_were(
    refusal: Callable[[Training], None], order: str, tmp_path: Path
) -> None:
    saved = Training(0)
    if refusal is module_that_refuses:
        saved.ema = RefusingModel(nn.Linear(2, 2))  # type: ignore[assignment]
    weft.save(tmp_path / "x", saved.net, **saved.parts())
    training = Training(2)
    refusal(training)
    parts = training.parts()
    if order == "reversed":
        parts = dict(reversed(parts.items()))
    before = training.state()
    groups, state = training.optimizer.param_groups[0], training.optimizer.state
    with pytest.raises(REFUSALS[refusal]) as caught:
        weft.load(tmp_path / "x", training.net, **parts)
    if isinstance(training.part, AlwaysRefusing):
        assert "refuses what it had before, too" in str(caught.value)
        training.part.tensor.fill_(2)  # what only it itself could have put back
    elif isinstance(training.part, WithoutState):
        training.part.tensor.fill_(9)
    elif isinstance(caught.value, weft.CheckpointError):
        assert "all is as it was" in str(caught.value)
    assert training.state() == before
    assert training.optimizer.param_groups[0] is groups
    assert training.optimizer.state is state


BAD_STATES: dict[str, Any] = {
    "scaler": {"scale": 2.0},
    "generator": torch.zeros(3, dtype=torch.uint8),
    "scheduler": 3,
    "callback": {},
    "part": {"value": 1},
    "ema": {"weight": torch.zeros(2, 2)},
    "optimizer": {"state": {}, "param_groups": [{}]},
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_that_does_not_fit_leaves_all_parts(name: str, tmp_path: Path) -> None:
    saved, training = Training(0), Training(2)
    weft.save(tmp_path / "x", saved.net, **{**saved.parts(), name: BAD_STATES[name]})
    before = training.state()
    with pytest.raises(weft.CheckpointError):
        weft.load(tmp_path / "x", training.net, **training.parts())
    assert training.state() == before


def test_random_states_that_are_none_leave_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, training = Training(0), Training(2)
    states = {"python": random.getstate(), "torch": torch.zeros(4)}
    with monkeypatch.context() as patched:
        patched.setattr("weft.train.checkpoints.content.random_states", lambda: states)
        weft.save(tmp_path / "x", saved.net, **saved.parts())
    before = training.state()
    with pytest.raises(weft.CheckpointError, match="random states have no meaning"):
        weft.load(tmp_path / "x", training.net, **training.parts())
    assert training.state() == before


def test_what_fits_is_restored_as_a_whole(tmp_path: Path) -> None:
    saved, training = Training(0), Training(2)
    weft.save(tmp_path / "x", saved.net, **saved.parts())
    states = random.getstate(), torch.get_rng_state()
    weft.load(tmp_path / "x", training.net, **training.parts())
    training.part.second, training.callback.since = saved.part.second, saved.callback.since
    del training.part.added
    saved.optimizer.param_groups[0].pop("initial_lr")
    assert random.getstate() == states[0]
    assert tree(training.net.state_dict()) == tree(saved.net.state_dict())
    assert training.state()[4:10] == saved.state()[4:10]


class LateRefusal(nn.Module):
    """Refuses its extra state, which is taken when children have their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LazyLinear(2)
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.taken: list[Any] = []

    def get_extra_state(self) -> Any:
        return {"taken": list(self.taken)}

    def set_extra_state(self, state: Any) -> None:
        self.taken.append(state)
        if len(self.taken) == 1:
            self.count += 1
            raise RuntimeError("too late")
        self.taken = state["taken"]


def test_parameters_without_sizes_have_none_again_and_buffers_that_are_not_saved_their_values(tmp_path: Path) -> None:
    saved = LateRefusal()
    saved.inner(torch.ones(1, 3))
    weft.save(tmp_path / "x", saved)
    net = LateRefusal()
    weight, attributes = net.inner.weight, set(vars(net))
    with pytest.raises(weft.CheckpointError, match="too late"):
        weft.load(tmp_path / "x", net)
    assert net.inner.weight is weight
    assert torch.nn.parameter.is_lazy(weight)
    assert set(vars(net)) == attributes
    assert net.count.item() == 0
    assert net.taken == []
    net.taken = [1]
    weft.load(tmp_path / "x", net)
    assert torch.equal(net.inner.weight, saved.inner.weight)


def test_ctrl_c_while_parts_are_put_back_waits_for_the_last(tmp_path: Path) -> None:
    class Interrupting(Refusing):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            if self.asked:
                signal.raise_signal(signal.SIGINT)
            super().load_state_dict(state)

    saved, training = Training(0), Training(2)
    weft.save(tmp_path / "x", saved.net, **saved.parts())
    training.part = Interrupting(2)
    before = training.state()
    parts = training.parts()
    with pytest.raises(KeyboardInterrupt):
        weft.load(tmp_path / "x", training.net, part=parts.pop("part"), **parts)
    assert training.state() == before


def test_a_sampler_without_state_is_refused_before_anything_changes(tmp_path: Path) -> None:
    saved, training = Training(0), Training(2)
    weft.save(tmp_path / "x", saved.net, **saved.parts(), sampler=[1])
    before = training.state()
    with pytest.raises(weft.UsageError, match="sampler is a SequentialSampler, which cannot take a state"):
        weft.load(tmp_path / "x", training.net, **training.parts(), sampler=SequentialSampler(range(3)))
    assert training.state() == before
