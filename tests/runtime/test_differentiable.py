"""A program with gradients is one node of autograd's graph."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch

from weft.compile import pipeline
from weft.compile.pipeline import compile_graph
from weft.ir.parser import parse_graph
from weft.runtime.compiled_graph import CompiledGraph
from weft.runtime.differentiable import MOST_UNANSWERED, DifferentiableExecutable, Forward

FORWARD = """graph f(%x: f32[3], %scale: f32[3]) {
  %0: f32[3] = library aten.mul.Tensor(%x, %scale)
  %1: f32[3] = library aten.sin.default(%x)
  return %0, %1, %x
}"""
BACKWARDS = {
    (True, True): """graph b(%x: f32[3], %scale: f32[3], %first: f32[3], %second: f32[3]) {
      %0: f32[3] = library aten.mul.Tensor(%first, %scale)
      %1: f32[3] = library aten.cos.default(%x)
      %2: f32[3] = library aten.mul.Tensor(%second, %1)
      %3: f32[3] = library aten.add.Tensor(%0, %2)
      %4: f32[3] = library aten.mul.Tensor(%first, %x)
      return %3, %4
    }""",
    (False, True): """graph b(%x: f32[3], %second: f32[3]) {
      %0: f32[3] = library aten.cos.default(%x)
      %1: f32[3] = library aten.mul.Tensor(%second, %0)
      return %1
    }""",
}


@pytest.fixture
def asked() -> list[Any]:
    return []


def no_again(*_: Any) -> NoReturn:
    raise AssertionError("no gradient is differentiated again here")


@pytest.fixture
def run(asked: list[Any]) -> DifferentiableExecutable:
    def backward_of(tangents: Any, _: Any) -> Any:
        pattern = tuple(tangent is not None for tangent in tangents)
        asked.append(pattern)
        graph = parse_graph(BACKWARDS[pattern])
        return (graph, (0, 1), (0, 1), None, None) if pattern[0] else (graph, (0,), (0, None), None, None)

    forward = parse_graph(FORWARD.replace("return %0, %1, %x", "return %0, %1, %x, %scale"))
    return DifferentiableExecutable(
        Forward(forward, 2, [True, True], [0, 1], [], frozenset()), backward_of, compile_graph, no_again
    )


def inputs() -> list[torch.Tensor]:
    return [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)]


def test_gradients_are_those_of_the_backward_graph(run: DifferentiableExecutable) -> None:
    x, scale = inputs()
    first, second = run([x, scale])
    found = torch.autograd.grad([first, second], [x, scale], [torch.ones(3), torch.full((3,), 2.0)])
    expected = torch.autograd.grad((x * scale + x.sin() * 2).sum(), [x, scale])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_each_pattern_of_tangents_is_asked_for_once(run: DifferentiableExecutable, asked: list[Any]) -> None:
    for _ in range(2):
        x, scale = inputs()
        _, second = run([x, scale])
        found = torch.autograd.grad(second, [x, scale], torch.ones(3), allow_unused=True)
        torch.testing.assert_close(found[0], x.cos())
        assert found[1] is None
    assert asked == [(False, True)]


PRODUCT = """graph f(%x: f32[4,3], %weight: f32[3,2], %shift: f32[2]) {
  %0: f32[4,2] = library aten.mm.default(%x, %weight)
  %1: f32[4,2] = library aten.add.Tensor(%0, %shift)
  return %1, %x
}"""
OF_WEIGHT = """graph b(%x: f32[4,3], %tangent: f32[4,2]) {
  %0: f32[3,4]{1,3} = library aten.t.default(%x)
  %1: f32[3,2] = library aten.mm.default(%0, %tangent)
  return %1
}"""


@pytest.fixture
def lasting(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """For each forward that is made, the inputs that it takes to change rarely."""
    made: list[list[str]] = []

    def compiled(graph: Any, weights: Any, **options: Any) -> CompiledGraph:
        if graph.name == "f":
            made.append(sorted(value.name for value in weights))
        return compile_graph(graph, weights, **options)

    monkeypatch.setattr(pipeline, "compile_graph", compiled)
    return made


def product() -> DifferentiableExecutable:
    graph = parse_graph(PRODUCT)
    forward = Forward(graph, 1, [True], [1], [], frozenset(graph.inputs[1:]))
    return DifferentiableExecutable(
        forward, lambda *_: (parse_graph(OF_WEIGHT), (0,), (0,), None, None), pipeline.compile_graph, no_again
    )


def check_gradient(run: DifferentiableExecutable) -> None:
    x, weight, shift = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True), torch.randn(2)
    (found,) = run([x, weight, shift])
    torch.testing.assert_close(found, x @ weight + shift)
    found.sum().backward()
    torch.testing.assert_close(weight.grad, x.t() @ torch.ones(4, 2))


def test_a_forward_that_is_trained_takes_what_is_trained_as_it_is_at_each_call(lasting: list[list[str]]) -> None:
    run = product()
    for _ in range(2 * MOST_UNANSWERED):
        check_gradient(run)
    assert lasting == [["shift"]]


def test_parameters_are_packed_after_some_forwards_without_a_backward(lasting: list[list[str]]) -> None:
    run = product()
    for _ in range(2 * MOST_UNANSWERED):
        run([torch.randn(4, 3), torch.randn(3, 2, requires_grad=True), torch.randn(2)])
    check_gradient(run)
    assert lasting == [["shift"], ["shift", "weight"]]


def test_a_backward_of_either_forward_gives_the_gradient(lasting: list[list[str]]) -> None:
    run = product()
    x, weight, shift = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True), torch.randn(2)
    found = [run([x, weight, shift])[0] for _ in range(MOST_UNANSWERED + 1)]
    for one in (found[0], found[-1]):
        weight.grad = None
        one.sum().backward()
        torch.testing.assert_close(weight.grad, x.t() @ torch.ones(4, 2))
    assert len(lasting) == 2
