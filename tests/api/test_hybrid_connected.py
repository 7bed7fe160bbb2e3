"""Calls with gradients run natively up to the node that autograd sees, and are what eager's calls are."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.runtime.differentiable import MOST_UNANSWERED

ROUNDS = 3 * MOST_UNANSWERED


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def pair() -> tuple[nn.Sequential, nn.Sequential]:
    """The same network for eager, and hybridized with calls that are bound."""
    eager, ours = perceptron(), weft.hybridize(perceptron())
    for _ in range(ROUNDS):
        ours(torch.randn(3, 6)).sum().backward()
    ours.zero_grad()
    return eager, ours


def is_bound(net: nn.Module) -> bool:
    return bool(net.forward._known_calls._kept[0].is_bound)  # type: ignore[union-attr]


def gradients(net: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in net.parameters()]


def check(eager: nn.Module, ours: nn.Module) -> None:
    for one, other in zip(gradients(eager), gradients(ours), strict=True):
        torch.testing.assert_close(other, one)


def test_such_calls_are_bound_and_give_eagers_gradients() -> None:
    eager, ours = pair()
    assert is_bound(ours)
    for _ in range(ROUNDS):
        x = torch.randn(3, 6)
        eager(x).pow(2).sum().backward()
        ours(x).pow(2).sum().backward()
    check(eager, ours)


def test_a_call_enters_few_functions_of_python() -> None:
    _, ours = pair()
    x = torch.randn(3, 6)
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        found = ours(x)
    finally:
        sys.setprofile(None)
    assert found.requires_grad
    assert len(entered) < 20, entered
    assert "run" not in entered  # of a program: it ran natively


def test_parameters_that_change_between_calls_are_read_as_they_are() -> None:
    eager, ours = pair()
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (eager, ours)]
    for _ in range(ROUNDS):
        x = torch.randn(3, 6)
        for net, optimizer in zip((eager, ours), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).pow(2).sum().backward()
            optimizer.step()
    for one, other in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other, one)


def test_forwards_without_a_backward_pack_and_those_with_one_do_not_go_stale() -> None:
    eager, ours = pair()
    for _ in range(2):
        for _ in range(ROUNDS):  # nobody answers: parameters are packed
            x = torch.randn(3, 6)
            torch.testing.assert_close(ours(x), eager(x))
        assert is_bound(ours)
        with torch.no_grad():
            for net in (eager, ours):
                for parameter in net.parameters():
                    parameter.mul_(1.5)
        for _ in range(ROUNDS):
            x = torch.randn(3, 6)
            eager(x).sum().backward()
            ours(x).sum().backward()
        check(eager, ours)


def test_memory_that_is_given_to_a_parameter_is_read() -> None:
    eager, ours = pair()
    for net in (eager, ours):
        torch.manual_seed(1)
        net[0].weight.data = torch.randn(5, 6)
    for _ in range(4):
        x = torch.randn(3, 6)
        torch.testing.assert_close(ours(x), eager(x))
        eager(x).sum().backward()
        ours(x).sum().backward()
    check(eager, ours)


@pytest.mark.parametrize("name", ["2.weight", "x"])
def test_what_was_saved_may_not_change_before_the_backward(name: str) -> None:
    for net in pair():
        x = torch.randn(3, 6)
        found = net(x).sum()
        with torch.no_grad():
            (x if name == "x" else net.get_parameter(name)).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            found.backward()


def test_a_bias_that_no_gradient_reads_may_change_before_the_backward() -> None:
    for net in pair():
        found = net(torch.randn(3, 6)).sum()
        with torch.no_grad():
            net[4].bias.add_(1)
        found.backward()


def test_a_graph_can_be_used_twice_only_if_it_is_kept() -> None:
    eager, ours = pair()
    x = torch.randn(3, 6)
    for net in (eager, ours):
        found = net(x).sum()
        found.backward(retain_graph=True)
        found.backward()
        with pytest.raises(RuntimeError, match="second time"):
            found.backward()
    check(eager, ours)


def test_hooks_see_gradients_and_what_is_saved() -> None:
    eager, ours = pair()
    seen: list[list[Any]] = []
    for net in (eager, ours):
        told: list[Any] = []
        seen.append(told)
        packed: list[torch.Tensor] = []
        handle = net[2].weight.register_hook(lambda gradient, told=told: told.append(gradient.clone()) or 2 * gradient)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, packed=packed: packed.append(tensor) or tensor.clone(), lambda tensor: tensor
        ):
            found = net(torch.ones(3, 6))
        assert packed
        found.register_hook(lambda gradient, told=told: told.append(gradient.clone()))
        found.sum().backward()
        handle.remove()
    check(eager, ours)
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(other, one)


def test_saved_tensors_that_hooks_lay_out_otherwise_are_read_as_they_are() -> None:
    eager, ours = pair()
    for net in (eager, ours):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor, lambda tensor: tensor
        ):
            found = net(torch.ones(3, 6))
        found.sum().backward()
    check(eager, ours)


def test_an_argument_gets_its_gradient_and_passes_it_on() -> None:
    eager, ours = pair()
    for _ in range(ROUNDS):
        ours(torch.randn(3, 6, requires_grad=True) * 1).sum().backward()
    for net in (eager, ours):
        net.zero_grad()
        torch.manual_seed(2)
        x = torch.randn(3, 6, requires_grad=True)
        net(net(x * 2)[:, :1] * torch.ones(3, 6)).sum().backward()
        seen = x.grad
        assert seen is not None
        if net is eager:
            expected = seen
    torch.testing.assert_close(seen, expected)
    check(eager, ours)


def test_some_results_without_a_gradient_and_containers_around_them() -> None:
    def function(x: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        return [(x * scale).tanh(), (x > 0).float() + 1, scale.exp() * x]

    ours = weft.hybridize(function)
    for _ in range(ROUNDS):
        x, scale = torch.randn(4), torch.randn(4, requires_grad=True)
        found, expected = ours(x, scale), function(x, scale)
        assert type(found) is list
        assert [one.requires_grad for one in found] == [one.requires_grad for one in expected]
        (mine,) = torch.autograd.grad(found[0].sum() + 2 * found[2].sum(), scale)
        (theirs,) = torch.autograd.grad(expected[0].sum() + 2 * expected[2].sum(), scale)
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(found, expected)


def test_anomaly_mode_tells_of_the_forward() -> None:
    _, ours = pair()
    torch.set_anomaly_enabled(True)
    try:
        with pytest.warns(UserWarning, match="forward call"), pytest.raises(RuntimeError, match="nan"):
            ours(torch.full((3, 6), float("nan"))).sum().backward()
    finally:
        torch.set_anomaly_enabled(False)


def test_threads_get_gradients_of_their_own() -> None:
    eager, ours = pair()

    def task(seed: int) -> list[torch.Tensor]:
        found = []
        for number in range(20):
            x = torch.randn(3, 6, generator=torch.Generator().manual_seed(100 * seed + number))
            found += torch.autograd.grad(ours(x).sum(), list(ours.parameters()))
        return found

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(task, range(4)))
    for seed, found in enumerate(results):
        expected = []
        for number in range(20):
            x = torch.randn(3, 6, generator=torch.Generator().manual_seed(100 * seed + number))
            expected += torch.autograd.grad(eager(x).sum(), list(eager.parameters()))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_tensors_end_with_their_graph() -> None:
    _, ours = pair()
    x = torch.randn(3, 6)
    found = ours(x)
    before = sys.getrefcount(x)
    del found
    assert sys.getrefcount(x) <= before


def test_a_gradient_that_nobody_takes_is_no_error() -> None:
    _, ours = pair()
    weight = ours[2].weight
    weight.requires_grad_(False)
    for _ in range(ROUNDS):
        ours.zero_grad()
        ours(torch.randn(3, 6)).sum().backward()
    assert weight.grad is None
    assert ours[0].weight.grad is not None
    weight.requires_grad_(True)
    ours(torch.randn(3, 6)).sum().backward()
    assert weight.grad is not None
