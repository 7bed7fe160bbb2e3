"""A program with gradients is one node of autograd's graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.errors import UnsupportedError
from weft.ir.parser import parse_graph
from weft.runtime.differentiable import DifferentiableExecutable, Forward

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


@pytest.fixture
def run(asked: list[Any]) -> DifferentiableExecutable:
    def backward_of(tangents: Any) -> Any:
        pattern = tuple(tangent is not None for tangent in tangents)
        asked.append(pattern)
        graph = parse_graph(BACKWARDS[pattern])
        return (graph, (0, 1), (0, 1)) if pattern[0] else (graph, (0,), (0, None))

    forward = parse_graph(FORWARD.replace("return %0, %1, %x", "return %0, %1, %x, %scale"))
    return DifferentiableExecutable(Forward(forward, 2, [True, True], [0, 1], [], frozenset()), backward_of)


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


def test_the_gradient_of_a_gradient_is_refused(run: DifferentiableExecutable) -> None:
    x, scale = inputs()
    first, second = run([x, scale])
    (found,) = torch.autograd.grad([first, second], [x], [torch.ones(3), torch.ones(3)], create_graph=True)
    with pytest.raises(UnsupportedError, match="differentiated again"):
        found.sum().backward()
