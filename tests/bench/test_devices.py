"""PyTorch's own ways to train on two devices, as the benchmark runs them, train as one device does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bench.devices import measure
from bench.devices_peers import averaged_replicas, ddp
from torch.nn import functional

BATCH = torch.linspace(-1, 1, 8 * 5).reshape(8, 5), torch.arange(8) % 3
STEPS = 3


def parts(_name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small network, the same in each process."""
    torch.manual_seed(0)
    net = torch.nn.Linear(5, 3)
    return net, torch.optim.SGD(net.parameters(), 0.1)


def losses_of_one_device() -> list[float]:
    net, optimizer = parts("small")
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(BATCH[0]), BATCH[1])
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("start", [averaged_replicas, pytest.param(ddp, marks=pytest.mark.slow)])
def test_halves_on_two_devices_train_as_the_whole_batch_on_one(start: Callable[..., Any]) -> None:
    with start(parts, "small") as step:
        found = [float(step(*BATCH)) for _ in range(STEPS)]
    assert found == pytest.approx(losses_of_one_device(), rel=1e-5)


def test_contestants_take_turns_of_several_steps_of_which_the_first_is_not_counted() -> None:
    asked: list[str] = []

    def named(name: str) -> Callable[..., torch.Tensor]:
        return lambda *_: asked.append(name) or torch.zeros(())

    rounds = measure({"a": named("a"), "b": named("b")}, BATCH, 1e-9)
    assert [len(found) for found in rounds.values()] == [1, 1]
    assert asked == ["a"] * 6 + ["b"] * 6
