"""The least and the greatest that whole numbers of a Graph can be: what is said holds whatever the inputs are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.ir.random_graphs import graphs, random_inputs

from weft.ir.graph import Graph, Result, Value
from weft.ir.interpreter import interpret
from weft.ir.parser import parse_graph
from weft.ir.types import TensorType
from weft.plan.regions.indices import Range, range_of

WHOLE = Range(-(2**63), 2**63 - 1)
CASES = {
    "%0: i64[3] = iota shape=[3], dimension=0, dtype=i64": Range(0, 2),
    "%0: i64[4] = argmax %x, dimension=0, keep=False": Range(0, 4),
    "%0: i64[] = argmin %x, dimension=None, keep=False": Range(0, 19),
    "%0: i64[5,4] = cast %x, dtype=i64": WHOLE,
    "%0: bool[5,4] = isnan %x": Range(0, 1),
    "%0: bool[5,4] = isnan %x %1: i64[5,4] = cast %0, dtype=i64 %2: i64[4] = sum %1, dimensions=[0], keep=False": Range(
        0, 5
    ),
    "%0: i64[3] = constant [4, -2, 7] %1: i64[3] = mul %0, %0": Range(-14, 49),
    "%0: u8[3] = constant [4, 2, 7] %1: u8[3] = sub %0, %0": Range(0, 255),
    "%0: i64[3] = constant [-1, 0, 1] %1: bool[3] = logical_not %0": Range(0, 1),
    "%0: i64[3] = constant [1, 2, 3] %1: bool[3] = logical_not %0": Range(0, 0),
    "%0: i64[3] = add %i, %i": WHOLE,
    "%0: i64[3] = constant [0, 2, 5] %1: i64[3] = minimum %i, %0 %2: i64[3] = maximum %1, %0": Range(0, 5),
    "%0: i64[3] = iota shape=[3], dimension=0, dtype=i64 %1: i64[3] = constant [0, 0, 0] %2: bool[3] = lt %0, %1"
    " %3: i64[3] = select %2, %i, %0": Range(0, 2),
    "%0: i64[3] = constant [0, 0, 0] %1: bool[3] = lt %i, %0 %2: i64[3] = select %1, %0, %i": Range(0, 2**63 - 1),
    "%0: i64[3] = constant [-5, 0, 9] %1: i64[3] = constant [0, 0, 0] %2: bool[3] = lt %0, %1"
    " %3: i64[3] = constant [9, 9, 9] %4: i64[3] = add %0, %3 %5: i64[3] = select %2, %4, %0": Range(0, 9),
}


@pytest.mark.parametrize("text", CASES)
def test_the_range_follows_from_how_a_value_is_made(text: str) -> None:
    last = text.count("%") and text.rsplit(":", 1)[0].rsplit("%", 1)[1]
    graph = parse_graph(f"graph g(%x: f32[5,4], %i: i64[3]) {{ {text} return %{last} }}")
    assert range_of(graph.values[-1]) == CASES[text]


def test_numbers_that_are_no_whole_ones_have_no_range() -> None:
    graph = parse_graph("graph g(%x: f32[5,4]) { %0: f32[5,4] = neg %x return %0 }")
    assert range_of(graph.values[-1]) is None


def whole(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.dtype.is_floating_point


@settings(max_examples=150, deadline=None)
@given(graphs(12, calls=False))
def test_no_element_is_outside_of_the_range(graph: Graph) -> None:
    values = [value for value in graph.values if whole(value)]
    asked = Graph("g", graph.inputs, graph.values, tuple(map(Result, values)), ())
    for value, found in zip(values, interpret(asked, random_inputs(graph)), strict=True):
        limits = range_of(value)
        if found.numel():
            assert limits is not None
            assert limits.least <= int(found.min())
            assert int(found.max()) <= limits.greatest
