"""Several optimizers, schedulers, generators and modules in one part of a checkpoint: saved and restored one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import weft


class Run:
    """A small training run with two optimizers, each with a schedule."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
        first, last = self.net[0], self.net[2]
        self.optimizers = [optim.SGD(first.parameters(), 0.1, momentum=0.9), optim.AdamW(last.parameters(), 0.01)]
        self.schedules = [optim.lr_scheduler.StepLR(one, 2, 0.5) for one in self.optimizers]
        self.step = weft.step(self.net, functional.cross_entropy, self.optimizers)

    def train(self, count: int) -> list[torch.Tensor]:
        losses = []
        for number in range(count):
            generator = torch.Generator().manual_seed(number)
            losses.append(self.step(torch.randn(3, 4, generator=generator), torch.tensor([0, 1, 1])))
            for schedule in self.schedules:
                schedule.step()
        return losses


FORMS = {
    "what the step has": lambda run: run.step.optimizer,
    "a list": lambda run: run.optimizers,
    "a tuple": lambda run: tuple(run.optimizers),
    "a dictionary": lambda run: dict(zip(("first", "last"), run.optimizers, strict=True)),
}


@pytest.mark.parametrize("name", ["run.safetensors", "run.pt"])
@pytest.mark.parametrize("form", FORMS)
def test_training_with_several_optimizers_goes_on_as_it_was(tmp_path: Path, form: str, name: str) -> None:
    run, other = Run(0), Run(1)
    run.train(3)
    path = tmp_path / name
    weft.save(path, run.net, optimizer=FORMS[form](run), schedules=run.schedules)
    weft.load(path, other.net, optimizer=FORMS[form](other), schedules=other.schedules)
    torch.manual_seed(7)
    expected = run.train(4)
    torch.manual_seed(7)
    torch.testing.assert_close(other.train(4), expected)
    for one, own in zip(run.optimizers, other.optimizers, strict=True):
        assert own.param_groups[0]["lr"] == one.param_groups[0]["lr"]


def test_a_folder_of_checkpoints_takes_rows_too(tmp_path: Path) -> None:
    run, other = Run(0), Run(1)
    run.train(2)
    random = torch.Generator().manual_seed(3)
    checkpoints = weft.Checkpoints(tmp_path, background=True)
    checkpoints.save(run.net, 2, optimizer=run.step.optimizer, others=[random])
    checkpoints.wait()
    again = torch.Generator()
    weft.Checkpoints(tmp_path).load(other.net, optimizer=other.optimizers, others=[again])
    assert torch.equal(torch.rand(2, generator=again), torch.rand(2, generator=random))
    torch.manual_seed(7)
    expected = run.train(2)
    torch.manual_seed(7)
    torch.testing.assert_close(other.train(2), expected)


def test_a_row_of_modules_is_restored(tmp_path: Path) -> None:
    run, path = Run(0), tmp_path / "nets.safetensors"
    nets, others = ([nn.Linear(2, 3), nn.Linear(3, 1)] for _ in range(2))
    weft.save(path, run.net, nets=nets)
    weft.load(path, run.net, nets=others)
    for net, other in zip(nets, others, strict=True):
        assert torch.equal(other.weight, net.weight)


def test_rows_of_plain_values_stay_plain_values(tmp_path: Path) -> None:
    run, path = Run(0), tmp_path / "plain.safetensors"
    weft.save(path, run.net, history=[1.5, 2], names=("a", "b"), table={"x": [1]})
    found = weft.load(path, run.net)
    assert (found["history"], found["names"], found["table"]) == ([1.5, 2], ("a", "b"), {"x": [1]})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda run: run.optimizers[:1],
        lambda run: run.optimizers[::-1],
        lambda run: {"first": run.optimizers[0], "last": run.optimizers[1]},
        lambda run: run.optimizers[0],
    ],
)
def test_a_row_that_is_another_is_refused_and_changes_nothing(tmp_path: Path, wrong: Any) -> None:
    run, other, path = Run(0), Run(1), tmp_path / "run.safetensors"
    run.train(2)
    weft.save(path, run.net, optimizer=run.optimizers)
    before = other.net[0].weight.clone()
    with pytest.raises(weft.CheckpointError, match="optimizer"):
        weft.load(path, other.net, optimizer=wrong(other))
    assert torch.equal(other.net[0].weight, before)
    assert not other.optimizers[0].state
