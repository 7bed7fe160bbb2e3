"""Results that are computed from other results are tied to them in autograd's graph, as in eager."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.api.linked_cases import FUNCTIONS, QUESTIONS, Net, agree, answer
from torch import nn

import weft
from weft.config import overrides
from weft.errors import UnsupportedError

AGAIN = {"penalty", "second", "penalty_seen"}
TWICE = {"chain", "shared_weight", "row", "written"}  # are asked for gradients of gradients


def of(name: str) -> tuple[Net, Callable[[torch.Tensor], Any]]:
    """A function of one argument, with the net that it uses."""
    torch.manual_seed(0)
    net = Net()

    def function(x: torch.Tensor) -> Any:
        return FUNCTIONS[name](net, x)

    return net, function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_results_are_eagers(name: str) -> None:
    net, function = of(name)
    run = weft.hybridize(function)
    left_out = AGAIN if name not in TWICE else set()
    for question in (question for key, question in QUESTIONS.items() if key not in left_out):
        expected = answer(net, function, question)
        for _ in range(2):
            assert agree(answer(net, run, question), expected), question.__name__


@pytest.mark.parametrize("name", ["skip", "written", "of_input", "split"])
def test_sizes_may_vary(name: str) -> None:
    net, function = of(name)
    run = weft.hybridize(function, sizes={"x": {0: ("rows", 1, 16)}})
    for question in QUESTIONS.values():
        for rows in (3, 5):
            expected = answer(net, function, question, rows)
            if question.__name__ == "penalty_seen":
                with pytest.raises(UnsupportedError, match="differentiated again"):
                    answer(net, run, question, rows)
            else:
                assert agree(answer(net, run, question, rows), expected), question.__name__


@pytest.mark.parametrize("way", ["lazy", "compile"])
def test_each_way_into_weft_ties_results(way: str) -> None:
    net, function = of("skip")
    run = torch.compile(function, backend="weft") if way == "compile" else function
    for question in map(QUESTIONS.__getitem__, ("plain", "asked", "into_both", "used_outside_and_seen", "second")):
        expected = answer(net, function, question)
        for _ in range(2):
            with weft.lazy() if way == "lazy" else nullcontext():
                found = answer(net, run, question)
            assert agree(found, expected), question.__name__


def test_paths_tie_their_results() -> None:
    torch.manual_seed(0)
    net = Net()

    def function(x: torch.Tensor) -> Any:
        if x.detach().sum() > 100:
            return None
        h = torch.tanh(net.first(x))
        for _ in range(12):
            h = torch.tanh(net.second(h))
        return net.third(h).exp().sum(), h

    run = weft.hybridize(function)
    with overrides(whole="off"):
        assert "Linked" in run(torch.randn(3, 4))[0].grad_fn.name()
        for name in ("plain", "asked", "into_both", "used_outside_and_seen", "second"):
            expected = answer(net, function, QUESTIONS[name])
            assert agree(answer(net, run, QUESTIONS[name]), expected), name


def test_a_module_gives_states_whose_gradients_are_seen() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(5)), "head": nn.Linear(4, 1)})

    def states(x: torch.Tensor) -> Any:
        found = [x]
        for layer in net["layers"]:
            found.append(torch.tanh(layer(found[-1])))
        return {"loss": net["head"](found[-1]).sum(), "states": tuple(found)}

    x = torch.randn(3, 4)
    run = weft.hybridize(states)
    for chosen in ([1, 2, 3, 4, 5], [2], [5], [1, 4]):
        kept = []
        for function in (states, run, run):
            net.zero_grad()
            found = function(x)
            for number in chosen:
                found["states"][number].retain_grad()
                found["states"][number].register_hook(lambda gradient: gradient * 1.5)
            (found["loss"] + found["states"][3].sin().sum()).backward()
            gradients = [found["states"][number].grad for number in chosen]
            kept.append([*gradients, *(parameter.grad.clone() for parameter in net.parameters())])
        assert agree(kept[1], kept[0])
        assert agree(kept[2], kept[0])


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-0.1, 0.1)


def _hooked(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    h.register_hook(lambda gradient: gradient * 2)
    return net.third(h).sum(), h


def _hooked_alone(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    h.register_hook(lambda gradient: gradient * 2)
    return h.view_as(h).sum(), h * 1, h.detach().sum(), h


def _hooked_where_it_is_kept(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    h.register_hook(lambda gradient: gradient * 2)
    h.register_hook(lambda gradient: gradient.clamp(max=0.5))
    net.kept.append(h)
    return net.third(h).sum(), h * 2


@pytest.mark.parametrize("function", [_hooked, _hooked_alone, _hooked_where_it_is_kept])
@pytest.mark.parametrize("question", QUESTIONS)
def test_hooks_inside_are_called_before_those_outside(function: Callable[..., Any], question: str) -> None:
    torch.manual_seed(0)
    net = Net()
    expected = answer(net, lambda x: function(net, x), QUESTIONS[question])
    assert agree(answer(net, weft.hybridize(lambda x: function(net, x), whole=False), QUESTIONS[question]), expected)


def test_hooks_inside_that_look_on_are_programs() -> None:
    seen: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda gradient: seen.append(gradient.sum()))
        return y

    x = torch.ones(3, requires_grad=True)
    y = weft.hybridize(function, whole=True)(x)
    y.retain_grad()
    y.sum().backward()
    assert float(seen[-1]) == 3
    assert y.grad is not None
    assert x.grad is not None
    assert [*y.grad.tolist(), *x.grad.tolist()] == [1.0] * 3 + [2.0] * 3


def _clipped_below_both(net: Net, x: torch.Tensor) -> Any:
    a = _Clipped.apply(net.first(x))
    h = torch.tanh(a)
    return (net.third(h) * a).sum(), h


def _clipped_between(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    m = _Clipped.apply(h)
    m.register_hook(lambda gradient: gradient * 2)
    return net.third(m).sum(), h


@pytest.mark.parametrize("function", [_clipped_below_both])
def test_what_would_see_a_sum_in_parts_is_refused_with_its_line(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    net = Net()
    run = weft.hybridize(lambda x: function(net, x))
    for name in ("plain", "used_outside"):
        expected = answer(net, lambda x: function(net, x), QUESTIONS[name])
        assert agree(answer(net, run, QUESTIONS[name]), expected)
    for name in ("retained", "seen"):
        with pytest.raises(UnsupportedError, match="asks outside for the gradient") as raised:
            answer(net, run, QUESTIONS[name])
        assert "test_linked_results.py" in str(raised.value)


def test_what_sees_the_whole_gradient_is_run_once() -> None:
    torch.manual_seed(0)
    net = Net()
    run = weft.hybridize(lambda x: _clipped_between(net, x))
    for question in QUESTIONS.values():
        expected = answer(net, lambda x: _clipped_between(net, x), question)
        assert agree(answer(net, run, question), expected), question.__name__


def test_a_backward_without_questions_is_one_program() -> None:
    _, function = of("chain")
    run = weft.hybridize(function)
    x = torch.randn(3, 4)
    loss, h = run(x)
    owner = h.grad_fn.owner  # of the program's node
    loss.backward()
    assert len(owner._backwards._runs) == 1
    link = loss.grad_fn.link
    assert not link._runs._runs
    loss, h = run(x)
    h.retain_grad()
    loss.backward()
    assert len(link._runs._runs) == 1


def test_linked_results_are_no_views_and_are_read_by_second_backwards() -> None:
    net = Net()

    def function(x: torch.Tensor) -> Any:
        a = net.first(x).sin()
        h = torch.sigmoid(net.second(a))
        return h.sin().sum(), a, h

    run = weft.hybridize(function)
    found = []
    for tried in (function, run):
        x = torch.ones(3, 4, requires_grad=True)
        loss, a, h = tried(x)
        assert not loss._is_view()
        assert not h._is_view()
        (first,) = torch.autograd.grad(loss, a, create_graph=True)
        found.append([first.detach(), *torch.autograd.grad(first.pow(2).sum(), [h, a, x])])
    assert agree(found[1], found[0])


def test_dropped_results_are_freed_with_the_graph() -> None:
    _, function = of("deep")
    run = weft.hybridize(function)
    x = torch.randn(3, 4)
    for ask in (False, True):
        loss, h, states = run(x)
        if ask:
            h.retain_grad()
        references = [weakref.ref(state) for state in (*states, loss)]
        gc.disable()
        try:
            loss.backward()
            del loss, h, states
            assert not any(reference() is not None for reference in references)
        finally:
            gc.enable()


def _same(function: Any) -> Any:
    return function


def test_arguments_that_autograd_has_computed_are_no_code_of_somebodys() -> None:
    def parts(x: torch.Tensor, y: torch.Tensor) -> Any:
        h = x * y
        return h.tanh().exp(), h, x.sin() * y

    run = weft.hybridize(parts)
    for rows in (3, 5, 4, 5, 3):
        found = []
        for function in (parts, run):
            torch.manual_seed(rows)
            start = torch.randn(rows, 4, requires_grad=True)
            first, h, other = function(start * 2, start.cos())
            (slope,) = torch.autograd.grad(first.sum() + other.pow(2).sum(), start, create_graph=True)
            (slope.pow(2).sum() + h.pow(2).sum()).backward()
            found.append([slope.detach(), start.grad])
            first, h, other = function(start * 2, start.cos())
            h.retain_grad()
            (first.sum() + h.pow(2).sum() + other.sum()).backward()
            found[-1] += [h.grad, start.grad]
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
