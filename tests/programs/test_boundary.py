"""Writes and views at the edge of a program."""

from __future__ import annotations

import torch

from weft.ir.graph import Graph, Value, Write
from weft.ir.parser import parse_graph
from weft.ir.types import type_of
from weft.programs.boundary import Boundary, follow


def apply(text: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], carries: int = 0) -> list[torch.Tensor]:
    graph = parse_graph(text)
    return Boundary(graph, [True] * carries + [False] * (len(graph.results) - carries)).apply(inputs, outputs)


def test_two_inputs_may_take_each_others_elements() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    apply("graph g(%x: f32[2], %y: f32[2]) {\n  write %x <- %y\n  write %y <- %x\n  return\n}", [x, y], [y, x])
    assert x.tolist() == [0.0, 0.0]
    assert y.tolist() == [1.0, 1.0]


def test_an_input_may_take_a_view_of_itself() -> None:
    x = torch.arange(4.0).reshape(2, 2)
    text = """graph g(%x: f32[2,2]) {
      %0: f32[2,2]{1,2} = library aten.t.default(%x)
      write %x <- %0
      return %x
    }"""
    (found,) = apply(text, [x], [x, x.t()])
    assert found is x
    assert x.tolist() == [[0.0, 2.0], [1.0, 3.0]]


def test_results_that_are_views_of_inputs_are_taken_of_the_tensor_handed_in() -> None:
    x = torch.arange(4.0).reshape(2, 2)
    (row,) = apply("graph g(%x: f32[2,2]) {\n  return %x via aten.select.int(_, 0, 1)\n}", [x], [x])
    x[1, 0] = 9.0
    assert row.tolist() == [9.0, 3.0]


def test_a_view_carries_a_gradient_only_where_the_program_says_so() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    text = "graph g(%x: f32[2,2]) {\n  return %x via aten.select.int(_, 0, 1)\n}"
    assert apply(text, [x], [x], carries=1)[0].grad_fn is not None
    assert apply(text, [x], [x])[0].grad_fn is None


def test_a_path_is_followed_step_by_step() -> None:
    graph = parse_graph(
        "graph g(%x: f32[2,4]) {\n  return %x via aten.split.Tensor(_, 2, 1)[1] via aten.select.int(_, 0, 0)\n}"
    )
    x = torch.arange(8.0).reshape(2, 4)
    assert follow(x, graph.results[0].path).tolist() == [2.0, 3.0]


def test_many_writes_are_seen_as_writes() -> None:
    targets = [torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(4)), torch.zeros(3, 2).t()]
    values = [torch.full(target.shape, float("nan")) for target in targets]
    versions = [target._version for target in targets]
    inputs = [Value("input", (), type_of(target), name=f"i{place}") for place, target in enumerate(targets)]
    made = [Value("exp", (value,), value.type) for value in inputs]
    graph = Graph("g", tuple(inputs), tuple(made), (), tuple(map(Write, inputs, made)))
    Boundary(graph, []).apply(targets, values)
    for target, version in zip(targets, versions, strict=True):
        assert target.isnan().all()
        assert target._version == version + 1
