"""Printed Graphs parse back to the same, and keep what they compute."""

import copy
import math

import pytest
import torch
from hypothesis import given
from tests.ir.random_graphs import graphs, random_inputs

from weft.ir.interpreter import interpret
from weft.ir.literals import inline_elements
from weft.ir.parser import parse_graph
from weft.ir.printer import constants_of, print_graph
from weft.ir.same_graph import same_graph
from weft.ir.verifier import problems_of


@given(graphs())
def test_a_random_graph_is_valid(graph):
    assert problems_of(graph) == []


@given(graphs())
def test_a_printed_graph_parses_back_to_the_same(graph):
    text = print_graph(graph)
    again = parse_graph(text, constants_of(graph))
    assert print_graph(again) == text
    assert same_graph(graph, again)
    assert [value.place for value in again] == [value.place for value in graph]
    assert problems_of(again) == []


@given(graphs())
def test_a_parsed_graph_computes_the_same_bits(graph):
    again = parse_graph(print_graph(graph), constants_of(graph))
    one, other = random_inputs(graph), random_inputs(graph)
    results = [interpret(graph, one), interpret(again, other)]
    for left, right in zip([*results[0], *one], [*results[1], *other], strict=True):
        torch.testing.assert_close(
            left, right, rtol=0, atol=0, equal_nan=True, check_stride=isinstance(left, torch.Tensor)
        )


@given(graphs())
def test_a_graph_is_the_same_as_itself_and_not_as_one_with_another_result(graph):
    assert same_graph(graph, graph)
    more = copy.copy(graph)
    object.__setattr__(more, "results", graph.results * 2)
    assert same_graph(graph, more) == (not graph.results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_a_nan_with_a_sign_is_no_text(dtype: torch.dtype) -> None:
    nan = torch.tensor(math.nan, dtype=dtype)
    assert inline_elements(nan) is not None
    assert inline_elements(torch.full((), math.nan, dtype=dtype).neg()) is None
