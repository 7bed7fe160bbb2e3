"""The backward is a graph of its own: from saved values and tangents to gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.trace.traces import lines, traced

import weft
from weft.errors import UnsupportedError
from weft.ir.interpreter import interpret
from weft.ir.types import type_of


def test_gradients_of_the_interpreted_backward_are_those_of_eager() -> None:
    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    found = traced(lambda x, y: (x * y).tanh().sum(0), x, y)
    assert found.gradient is not None
    outputs = interpret(found.gradient.graph, [x.detach(), y.detach()])
    tangent = torch.randn(3)
    backward = found.gradient.backward((type_of(tangent),))
    saved = [outputs[1:][place] for place in found.gradient.saved_positions(backward)]
    results = interpret(backward.graph, [*saved, tangent])
    expected = torch.autograd.grad((x * y).tanh().sum(0), [x, y], tangent)
    for index, wanted in zip(backward.gradients, expected, strict=True):
        assert torch.equal(results[index], wanted)


def test_views_are_made_again_and_not_saved() -> None:
    weight = torch.randn(3, 4, requires_grad=True)
    found = traced(lambda x: (x @ weight.t()).sum(), torch.randn(2, 4, requires_grad=True))
    assert found.gradient is not None
    assert all(value.op == "input" for value in found.gradient.saved)


def test_a_pattern_without_a_tangent_gives_no_gradient() -> None:
    x, y = torch.randn(2, requires_grad=True), torch.randn(2, requires_grad=True)
    found = traced(lambda x, y: (x * 2, y * 3), x, y)
    assert found.gradient is not None
    backward = found.gradient.backward((None, type_of(y)))
    assert backward.gradients[0] is None
    assert lines(backward.graph)[-1] == "return %0"


def test_an_input_that_is_written_is_saved_as_it_was_before() -> None:
    weight = torch.randn(2, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * weight
        with torch.no_grad():
            x.clone().add_(1)
        return y

    found = traced(function, torch.randn(2))
    assert found.gradient is not None
    assert found.gradient.failure is None


def test_a_backward_that_cannot_be_traced_fails_when_it_runs() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(context: Any, tangent: torch.Tensor) -> torch.Tensor:
            return tangent * tangent.sum().item()

    found = traced(Reads.apply, torch.ones(2, requires_grad=True))
    assert found.gradient is not None
    with pytest.raises(UnsupportedError, match="Python number"):
        found.gradient.backward((type_of(torch.ones(2)),))


def test_what_a_function_of_autograd_gives_back_makes_no_input() -> None:
    class Computed(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            y = torch.mm(x, weight)
            context.save_for_backward(y, weight)
            return y

        @staticmethod
        def backward(context: Any, tangent: torch.Tensor) -> Any:
            y, weight = context.saved_tensors
            return tangent @ weight.t() + y, None

    found = traced(Computed.apply, torch.ones(2, 3, requires_grad=True), torch.ones(3, 3))
    assert [entry.argument for entry in found.inputs] == [0, 1]


@pytest.mark.parametrize("several", [False, True])
def test_what_is_written_into_a_copy_that_reshape_made_has_a_gradient(*, several: bool) -> None:
    def rows(x: torch.Tensor) -> Any:
        copy = x.t().reshape(2, 6)
        copy[0] = copy[1]
        copy[:, 1].mul_(3)
        return (copy, copy[1]) if several else copy

    found = []
    for function in (rows, weft.hybridize(rows)):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_()
        results = function(x * 1)
        sum(one.square().sum() for one in (results if several else (results,))).backward()
        found.append(x.grad)
    assert torch.equal(*found)
