"""A backward runs below autograd, or as a node that is differentiated again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.compile.pipeline import compile_graph
from weft.ir.parser import parse_graph
from weft.ir.types import type_of
from weft.runtime.differentiable_backward import BackwardAgain, BackwardRuns

# Of x * x: the gradient is twice the product of x and the tangent.
FIRST = """graph b(%x: f32[3], %tangent: f32[3]) {
  %0: f32[3] = library aten.mul.Tensor(%tangent, %x)
  %1: f32[3] = library aten.add.Tensor(%0, %0)
  return %1
}"""
AGAIN = FIRST.replace("return %1", "return %1, %x, %tangent")
SECOND = """graph b(%x: f32[3], %tangent: f32[3], %second: f32[3]) {
  %0: f32[3] = library aten.mul.Tensor(%second, %tangent)
  %1: f32[3] = library aten.add.Tensor(%0, %0)
  %2: f32[3] = library aten.mul.Tensor(%second, %x)
  %3: f32[3] = library aten.add.Tensor(%2, %2)
  return %1, %3
}"""


@pytest.fixture
def asked() -> list[Any]:
    return []


@pytest.fixture
def runs(asked: list[Any]) -> BackwardRuns:
    def again_of(_: Any, asking: frozenset[int]) -> BackwardAgain:
        asked.append(asking)
        places = (0, 1) if asking else (0, None)
        return BackwardAgain(
            parse_graph(AGAIN),
            (0,),
            (0,),
            (1, 2),
            (True,),
            None,
            None,
            lambda *_: (parse_graph(SECOND), (0, 1), places[: 1 + len(asking)], None, None),
            again_of,
        )

    return BackwardRuns(lambda *_: (parse_graph(FIRST), (0,), (0,), None, None), again_of, compile_graph)


def test_a_gradient_is_tied_to_the_inputs_and_to_the_tangents_that_ask(runs: BackwardRuns, asked: list[Any]) -> None:
    for asks in (False, True, False):
        x, tangent = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=asks)
        (found,) = runs.run_again([x.detach()], (type_of(x),), [x], [tangent])
        assert found is not None
        torch.testing.assert_close(found, 2 * x * tangent)
        second = torch.randn(3)
        found.backward(second)
        torch.testing.assert_close(x.grad, 2 * tangent.detach() * second)
        if asks:
            torch.testing.assert_close(tangent.grad, 2 * x.detach() * second)
    assert asked == [frozenset(), frozenset({0})]


def test_a_gradient_that_nobody_differentiates_has_no_history(runs: BackwardRuns) -> None:
    x, tangent = torch.randn(3), torch.randn(3)
    (found,) = runs.run([x], (type_of(x),), [tangent])
    torch.testing.assert_close(found, 2 * x * tangent)
    assert found is not None
    assert not found.requires_grad
