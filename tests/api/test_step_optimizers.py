"""Optimizers, with and without a rule, with their options: parameters and state become what eager makes them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.api.step_agreement import (
    Make,
    assert_same_state,
    assert_trains_alike,
    close,
    eager_step,
    stepped,
    trained,
)
from torch import nn, optim
from torch.nn import functional

import weft

WITH_RULE: dict[str, Make] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "sgd with momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "sgd dampened": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.3),
    "sgd nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd maximizing": partial(optim.SGD, lr=0.01, maximize=True, weight_decay=0.01),
    "sgd fused": partial(optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adam": partial(optim.Adam, lr=0.01),
    "adam with decay": partial(optim.Adam, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adam maximizing": partial(optim.Adam, lr=0.01, maximize=True, betas=(0.5, 0.7), eps=1e-3),
    "adamw": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
    "adamw amsgrad": partial(optim.AdamW, lr=0.01, amsgrad=True),
    "rmsprop": partial(optim.RMSprop, lr=0.01),
    "rmsprop centered": partial(optim.RMSprop, lr=0.01, centered=True, momentum=0.5, weight_decay=0.1),
    "rmsprop maximizing": partial(optim.RMSprop, lr=0.01, maximize=True, momentum=0.5),
    "adagrad": partial(optim.Adagrad, lr=0.1),
    "adagrad with decays": partial(
        optim.Adagrad, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5
    ),
    "adagrad maximizing": partial(optim.Adagrad, lr=0.01, maximize=True),
    "adamax": partial(optim.Adamax, lr=0.01),
    "adamax with decay": partial(optim.Adamax, lr=0.01, weight_decay=0.1, betas=(0.5, 0.7), eps=1e-3),
    "adamax maximizing": partial(optim.Adamax, lr=0.01, maximize=True),
    "radam": partial(optim.RAdam, lr=0.01),
    "radam adaptive": partial(optim.RAdam, lr=0.01, betas=(0.5, 0.9), weight_decay=0.1),
    "radam decoupled": partial(optim.RAdam, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, maximize=True),
    "adadelta": optim.Adadelta,
    "adadelta with decay": partial(optim.Adadelta, lr=0.5, rho=0.7, weight_decay=0.1, maximize=True),
    "nadam": partial(optim.NAdam, lr=0.01),
    "nadam with decay": partial(optim.NAdam, lr=0.05, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1, momentum_decay=0.3),
    "nadam decoupled": partial(optim.NAdam, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, maximize=True),
    "nadam of lists": partial(optim.NAdam, lr=0.01, weight_decay=0.1, foreach=True),
    "asgd": optim.ASGD,
    "asgd with decay": partial(optim.ASGD, lr=0.1, lambd=0.05, alpha=0.5, weight_decay=0.1, maximize=True),
    "asgd averaging": partial(optim.ASGD, lr=0.1, lambd=0.01, t0=1),
    "rprop": optim.Rprop,
    "rprop maximizing": partial(optim.Rprop, lr=0.1, etas=(0.3, 1.5), step_sizes=(0.09, 0.12), maximize=True),
    "rprop of lists": partial(optim.Rprop, foreach=True),
}


class AdamOfAnotherName(optim.Adam):
    """It may have another step."""


WITHOUT_RULE: dict[str, Make] = {
    "adafactor": partial(optim.Adafactor, lr=0.01),
    "a subclass": partial(AdamOfAnotherName, lr=0.01),
}


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(count: int = 3) -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(2)
    return [(torch.randn(5, 6), torch.randint(0, 3, (5,))) for _ in range(count)]


@pytest.mark.parametrize("name", WITH_RULE)
def test_an_optimizer_with_a_rule_trains_as_eager_does(name: str) -> None:
    assert_trains_alike(mlp(), functional.cross_entropy, WITH_RULE[name], batches())


def test_radam_begins_to_adapt_as_eager_does() -> None:
    """At the sixth step with the usual decays."""
    assert_trains_alike(mlp(), functional.cross_entropy, WITH_RULE["radam"], batches(9))


@pytest.mark.parametrize("name", ["nadam", "asgd averaging", "rprop"])
def test_what_an_optimizer_keeps_in_numbers_goes_on_as_in_eager(name: str) -> None:
    """Sixty steps, and parameters of both widths beside numbers in float32."""
    torch.manual_seed(3)
    net = mlp()
    many = [(torch.randn(5, 6), torch.randint(0, 3, (5,))) for _ in range(6)]
    assert_trains_alike(net, functional.cross_entropy, WITH_RULE[name], many, steps=60)
    eager, eager_optimizer, _ = trained(net, functional.cross_entropy, WITH_RULE[name], many, 20)
    ours, optimizer, _ = stepped(net, functional.cross_entropy, WITH_RULE[name], many, 20)
    torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(optimizer.state_dict(), eager_optimizer.state_dict(), rtol=2e-4, atol=2e-5)


def test_asgd_of_lists_computes_its_rates_in_float32() -> None:
    make = partial(optim.ASGD, lr=0.1, lambd=0.01, t0=1, foreach=True)
    eager, eager_optimizer, _ = trained(mlp(), functional.cross_entropy, make, batches(), 10)
    ours, optimizer, _ = stepped(mlp(), functional.cross_entropy, make, batches(), 10)
    torch.testing.assert_close(ours.state_dict(), eager.state_dict())
    torch.testing.assert_close(optimizer.state_dict(), eager_optimizer.state_dict())


@pytest.mark.parametrize("make", [optim.ASGD, optim.Rprop])
def test_a_rate_changed_before_the_first_step_is_what_is_kept_begins_with(make: Any) -> None:
    net, eager = mlp(), mlp()
    [batch] = batches(1)
    optimizer, eager_optimizer = make(net.parameters(), lr=0.01), make(eager.parameters(), lr=0.01)
    step = weft.step(net, functional.cross_entropy, optimizer)
    with pytest.raises((IndexError, RuntimeError)):
        step(batch[0], torch.full((5,), 9))
    for group in (*optimizer.param_groups, *eager_optimizer.param_groups):
        group["lr"] = 0.2
    for _ in range(2):
        step(*batch)
        eager_step(eager, functional.cross_entropy, eager_optimizer, batch)
    torch.testing.assert_close(net.state_dict(), eager.state_dict())
    torch.testing.assert_close(optimizer.state_dict(), eager_optimizer.state_dict())


@pytest.mark.parametrize("make", [optim.NAdam, optim.ASGD, optim.Rprop])
def test_rare_optimizers_update_within_the_program_and_exchange_their_state_with_eager(make: Any) -> None:
    data = [(x.double(), y) for x, y in batches()]
    half, half_optimizer, _ = trained(mlp().double(), functional.cross_entropy, make, data, 3)
    ours, eager = copy.deepcopy(half), copy.deepcopy(half)
    optimizer, eager_optimizer = make(ours.parameters()), make(eager.parameters())
    for loaded in (optimizer, eager_optimizer):
        loaded.load_state_dict(copy.deepcopy(half_optimizer.state_dict()))
    step = weft.step(ours, functional.cross_entropy, optimizer)
    for batch in data:
        step(*batch)
        eager_step(eager, functional.cross_entropy, eager_optimizer, batch)
    assert_same_state(optimizer, eager_optimizer)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)
    kept = sum(len(entry) - 1 for entry in optimizer.state.values())  # all but the count of steps
    assert len(step.program(data[0], {}).graph.writes) == 4 + kept


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_an_optimizer_without_a_rule_updates_by_pytorch(name: str) -> None:
    assert_trains_alike(mlp(), functional.cross_entropy, WITHOUT_RULE[name], batches())


def test_an_optimizer_that_needs_a_closure_gets_one() -> None:
    eager, ours = mlp(), mlp()
    [(x, y)] = batches(1)
    eager_optimizer, optimizer = optim.LBFGS(eager.parameters(), max_iter=4), optim.LBFGS(ours.parameters(), max_iter=4)
    step = weft.step(ours, functional.cross_entropy, optimizer)

    def closure() -> torch.Tensor:
        eager_optimizer.zero_grad()
        loss = functional.cross_entropy(eager(x), y)
        loss.backward()
        return loss

    torch.testing.assert_close(step(x, y), eager_optimizer.step(closure).detach())
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_learning_rate_scheduler_never_makes_a_program_again() -> None:
    def train(net: nn.Module, optimizer: optim.Optimizer, *, by_step: bool) -> int:
        scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12, cycle_momentum=True)
        step = weft.step(net, functional.cross_entropy, optimizer)
        for batch in batches(10):
            if by_step:
                step(*batch)
            else:
                eager_step(net, functional.cross_entropy, optimizer, batch)
            scheduler.step()
        return step.traces

    eager, ours = mlp().double(), mlp().double()
    wide = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(eager, optim.SGD(eager.parameters(), 0.01, momentum=0.9), by_step=False)
            assert train(ours, optim.SGD(ours.parameters(), 0.01, momentum=0.9), by_step=True) == 1
    finally:
        torch.set_default_dtype(wide)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)


def test_parameter_groups_have_options_of_their_own() -> None:
    def grouped(parameters: object) -> optim.Optimizer:
        first, second, *others = list(parameters)  # type: ignore[call-overload]
        groups = [{"params": [first, second], "lr": 0.05, "weight_decay": 0.1}, {"params": others, "amsgrad": True}]
        return optim.Adam(groups, lr=0.01)

    assert_trains_alike(mlp(), functional.cross_entropy, grouped, batches())


def test_training_continues_from_a_saved_state_with_and_without_weft() -> None:
    make = partial(optim.AdamW, lr=0.01)
    net = mlp().double()
    data = [(x.double(), y) for x, y in batches()]
    expected, expected_optimizer, _ = trained(net, functional.cross_entropy, make, data, 6)

    def resumed(by_step_first: bool) -> tuple[nn.Module, optim.Optimizer]:
        train, other = (stepped, trained) if by_step_first else (trained, stepped)
        half, half_optimizer, _ = train(net, functional.cross_entropy, make, data, 3)
        weights, state = copy.deepcopy(half.state_dict()), copy.deepcopy(half_optimizer.state_dict())
        fresh = mlp().double()
        fresh.load_state_dict(weights)

        def loaded(parameters: object) -> optim.Optimizer:
            optimizer = make(parameters)
            optimizer.load_state_dict(state)
            return optimizer

        found, optimizer, _ = other(fresh, functional.cross_entropy, loaded, data, 3)
        return found, optimizer

    for by_step_first in (True, False):
        found, optimizer = resumed(by_step_first)
        for mine, theirs in zip(found.parameters(), expected.parameters(), strict=True):
            close(mine, theirs)
        assert_same_state(optimizer, expected_optimizer)


def test_a_state_loaded_between_steps_is_used_without_a_new_program() -> None:
    net = mlp()
    optimizer = optim.Adam(net.parameters())
    step = weft.step(net, functional.cross_entropy, optimizer)
    first, second, third = batches()
    step(*first)
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
    expected = [step(*second), step(*third)]
    optimizer.load_state_dict(state)
    net.load_state_dict(weights)
    assert [step(*second), step(*third)] == expected
    assert step.traces == 1


def test_steps_of_pytorch_may_come_between() -> None:
    net, eager = mlp().double(), mlp().double()
    optimizer, eager_optimizer = (optim.SGD(thing.parameters(), 0.1, momentum=0.9) for thing in (net, eager))
    step = weft.step(net, functional.cross_entropy, optimizer)
    for turn, (x, y) in enumerate(batches(4)):
        eager_step(eager, functional.cross_entropy, eager_optimizer, (x.double(), y))
        if turn % 2:
            eager_step(net, functional.cross_entropy, optimizer, (x.double(), y))
        else:
            step(x.double(), y)
    for mine, theirs in zip(net.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)
    assert_same_state(optimizer, eager_optimizer)


def test_hooks_of_an_optimizer_run_because_pytorch_updates_then() -> None:
    net = mlp()
    optimizer = optim.SGD(net.parameters(), 0.1)
    seen: list[str] = []
    optimizer.register_step_post_hook(lambda *_: seen.append("updated"))
    step = weft.step(net, functional.cross_entropy, optimizer)
    step(*batches()[0])
    assert seen == ["updated"]


def test_a_step_that_somebody_put_in_the_place_of_the_optimizers_runs() -> None:
    net = nn.Linear(6, 3)
    optimizer = optim.SGD(net.parameters(), 0.1)
    real, calls = optimizer.step, []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return real(*arguments)

    optimizer.step = counted
    step = weft.step(net, functional.cross_entropy, optimizer)
    for x, y in batches()[:2]:
        step(x, y)
    assert len(calls) == 2


def test_a_scheduler_leaves_the_update_in_the_program() -> None:
    net = nn.Linear(6, 3)
    optimizer = optim.SGD(net.parameters(), 0.1)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = weft.step(net, functional.cross_entropy, optimizer)
    step(*batches()[0])
    scheduler.step()
    assert len(step.program(batches()[1], {}).graph.writes) == 2  # weight and bias


@pytest.mark.parametrize("make", [optim.Adafactor, partial(optim.LBFGS, max_iter=3), optim.NAdam])
def test_what_an_optimizer_of_pytorch_keeps_is_as_before_after_a_failure(make: Callable[..., optim.Optimizer]) -> None:
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    optimizer = make(net.parameters())
    step = weft.step(net, functional.cross_entropy, optimizer)
    (x, y), other = batches()[:2]
    step(x, y)
    step(x, y)
    before = copy.deepcopy((net.state_dict(), optimizer.state_dict()))

    def failing(*given: Any) -> None:
        raise OSError("the disk is full")

    hook = optimizer.register_step_post_hook(failing)
    with pytest.raises(OSError, match="the disk is full"):
        step(*other)
    hook.remove()
    torch.testing.assert_close((net.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    step(*other)


def test_parameters_narrower_than_float32_are_updated_in_float32_and_rounded_once() -> None:
    net = mlp().bfloat16()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    x, y = batches()[0]
    weft.step(net, functional.cross_entropy, optim.SGD(net.parameters(), 0.1))(x.bfloat16(), y)
    for parameter, old in zip(net.parameters(), before, strict=True):
        assert parameter.grad is not None
        expected = old.float() - parameter.grad.float() * 0.1
        torch.testing.assert_close(parameter, expected.bfloat16(), rtol=0.008, atol=0)
