"""Python makes steps until programs pay: of sizes that come most at once, of many sizes once they would save enough."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.api.rare_calls import MAKING, MAKING_A_NODE, RareSteps
from weft.config import overrides


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """Steps that Python may make, as it is unless somebody asks for whole programs."""
    with overrides(whole="off", programs_at_once=2):
        yield


def net() -> nn.Module:
    """A small network with averages of its own."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and classes."""
    return torch.randn(size, 6), torch.randint(3, (size,))


def both(sizes: list[int], make: Any, **options: Any) -> Any:
    """Train by steps and by the usual loop; everything must be the same after each."""
    ours, every = net(), options.get("accumulate", 1)
    theirs = copy.deepcopy(ours)
    optimizers = [make(one.parameters()) for one in (ours, theirs)]
    step = weft.step(ours, nn.CrossEntropyLoss(), optimizers[0], **options)
    for number, size in enumerate(sizes):
        given, target = batch(size)
        found = step(given, target)
        if number % every == 0:
            optimizers[1].zero_grad()
        loss = nn.functional.cross_entropy(theirs(given), target)
        (loss / every).backward()
        if number % every == every - 1:
            if "clip_norm" in options:
                nn.utils.clip_grad_norm_(theirs.parameters(), options["clip_norm"])
            optimizers[1].step()
        torch.testing.assert_close(found, loss.detach(), rtol=1e-4, atol=1e-5)
        kept = [value for one in optimizers[1].state.values() for value in one.values()]
        mine = [value for one in optimizers[0].state.values() for value in one.values()]
        torch.testing.assert_close(mine, kept, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5)
        gradients = [[parameter.grad for parameter in one.parameters()] for one in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    return step


MAKES = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 0.1}], ids=str)
def test_python_and_programs_take_turns_and_nobody_can_tell(make: Any, options: dict[str, Any]) -> None:
    step = both([8, 8, 8, 5, 8, 3, 7, 8, 8], make, **options)
    assert step.traces


def test_the_first_step_is_pythons_and_the_second_of_the_same_sizes_a_programs() -> None:
    made = [both([8] * count, MAKES["adam"]).traces for count in (1, 2, 6)]
    assert made == [0, 1, 1]


def test_the_sizes_that_come_most_have_a_program_and_a_last_batch_none() -> None:
    step = both([4, 8, 8, 8, 3, 8, 8, 8, 3, 8], MAKES["sgd"])
    assert step.traces == 1


def test_ever_other_sizes_have_no_program_before_python_has_cost_as_much() -> None:
    random.seed(0)
    step = both([random.randint(2, 60) for _ in range(40)], MAKES["sgd"])
    assert step.traces == 0


def test_ever_other_sizes_have_one_program_once_it_would_have_saved_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.api.rare_calls.MAKING", 0.0)
    monkeypatch.setattr("weft.api.rare_calls.MAKING_A_NODE", 1e-6)
    random.seed(0)
    step = both([60, *(random.randint(2, 60) for _ in range(30))], MAKES["adam"])
    assert [dict(program.range.tops) for program in step.varying] == [
        {0: (128, 6), 1: (128,), 2: (7,)}
    ]  # and the numbers of Adam
    assert not step.programs


def test_what_a_program_would_save_counts_and_not_what_python_takes() -> None:
    rare, key = RareSteps(), ((), (), ())
    rare.nodes = 10
    cost = MAKING + 10 * MAKING_A_NODE
    rare.note(key, cost, 1)
    assert not rare.many_pay(key)
    rare.note(key, 10 * cost, 1)
    assert rare.many_pay(key)


def test_a_step_by_python_that_fails_leaves_buffers_and_gradients_as_they_were() -> None:
    ours = net()
    step = weft.step(ours, nn.CrossEntropyLoss(), torch.optim.Adam(ours.parameters(), lr=0.1), accumulate=2)
    step(*batch(8))
    before = copy.deepcopy(ours.state_dict()), [parameter.grad.clone() for parameter in ours.parameters()]
    with pytest.raises((IndexError, RuntimeError)):
        step(torch.randn(4, 6), torch.full((4,), 7))
    torch.testing.assert_close(ours.state_dict(), before[0])
    torch.testing.assert_close([parameter.grad for parameter in ours.parameters()], before[1])


def test_whole_steps_have_programs_at_once() -> None:
    assert both([8], MAKES["sgd"], whole=True).traces == 1
    assert both([8, 5], MAKES["sgd"], whole=True).traces == 2
