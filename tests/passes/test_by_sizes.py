"""What follows from sizes alone is computed apart from the rest, once for each sizes."""

from __future__ import annotations

import torch

from weft.codegen.library import LibraryExecutable
from weft.ir.extents import extent_of_size
from weft.ir.graph import Graph, LiftedGraph, Result, Value
from weft.ir.ops import build
from weft.ir.types import NumberType, contiguous
from weft.passes.bounded import bounded
from weft.passes.by_sizes import split_by_sizes
from weft.plan.library_plan import plan_library


def mean_of_rows() -> tuple[Graph, Value]:
    size = Value("input", (), NumberType("int"), name="rows")
    rows = extent_of_size(size, 16)
    x = Value("input", (), contiguous(torch.float32, (rows, 4)), name="x")
    total = build("sum", x, dimensions=(0,), keep=False)
    count = build("expand", build("scalar", size, dtype=torch.float32), shape=(4,))
    mean = build("div", total, count)
    twice = build("add", x, x)
    return Graph("mean", (x, size), (total, count.operands[0], count, mean, twice), (Result(mean), Result(twice))), size


def test_numbers_made_of_sizes_become_inputs() -> None:
    graph, size = mean_of_rows()
    found = split_by_sizes(bounded(LiftedGraph.of(graph)), [size])
    assert not any(value.op in ("scalar", "number") for value in found.graph.values)
    made = LibraryExecutable(plan_library(found.of_sizes))((7,))
    assert [tensor.item() for tensor in made] == [7] * len(made)
    assert len(found.graph.inputs) == len(graph.inputs) + len(made)


def test_sizes_of_results_are_among_the_inputs_that_hold_a_size() -> None:
    graph, size = mean_of_rows()
    found = split_by_sizes(bounded(LiftedGraph.of(graph)), [size])
    assert set(found.sizes) <= {*found.graph.inputs}
    assert {factor.size for one in found.within for dimension in one for factor in dimension} - {None} <= {
        *found.sizes.values()
    }


def test_a_graph_without_sizes_stays_as_it_is() -> None:
    x = Value("input", (), contiguous(torch.float32, (3, 4)), name="x")
    graph = Graph("plain", (x,), (y := build("neg", x),), (Result(y),))
    found = split_by_sizes(bounded(LiftedGraph.of(graph)), [])
    assert (found.graph.inputs, found.graph.values, found.of_sizes.results) == (graph.inputs, graph.values, ())
