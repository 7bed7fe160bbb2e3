"""A plan of library calls becomes a Python function that runs them, with the user's line on every error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.conformance.compare import same_bits
from tests.ir.random_graphs import graphs, random_inputs

from weft.codegen.library import LibraryExecutable
from weft.ir.interpreter import interpret
from weft.ir.parser import parse_graph
from weft.plan.library_plan import plan_library


def run(text: str, *inputs: Any) -> tuple[Any, ...]:
    return LibraryExecutable(plan_library(parse_graph(text)))(inputs)


def test_the_text_of_the_function_is_one_line_a_call() -> None:
    text = """graph f(%x: f32[2,3]) {
      %0: f32[3,2]{1,3} = library aten.t.default(%x)
      %1: f32[2,2] = library aten.mm.default(%x, %0)
      return %1
    }"""
    assert LibraryExecutable(plan_library(parse_graph(text))).source == (
        "def run(i0):\n    v0 = aten_t_default(i0)\n    v1 = aten_mm_default(i0, v0)\n    del v0\n    return (v1, )"
    )


def test_several_results_of_an_operator_are_items() -> None:
    text = """graph f(%x: f32[2,3]) {
      %0: (f32[2], i64[2]) = library aten.max.dim(%x, 1)
      %1: f32[2] = item %0, index=0
      %2: i64[2] = item %0, index=1
      return %2, %1
    }"""
    x = torch.randn(2, 3)
    indices, values = run(text, x)
    assert torch.equal(values, x.max(1).values)
    assert torch.equal(indices, x.max(1).indices)


def test_a_write_goes_to_a_copy_with_the_layout_of_what_it_writes() -> None:
    text = """graph f(%x: f32[2,3]{1,2}) {
      %0: f32[2,3]{1,2} = update aten.mul_.Tensor(!0, 2) on !0 = %x
      return %0
    }"""
    x = torch.randn(3, 2).t()
    before = x.clone()
    (found,) = run(text, x)
    assert torch.equal(x, before)
    assert torch.equal(found, x * 2)
    assert found.stride() == x.stride()


def test_an_error_of_an_operator_keeps_its_type_and_gets_the_users_line() -> None:
    text = """graph f(%x: f32[2], %i: i64[1]) {
      %0: f32[1] = library aten.index_select.default(%x, 0, %i)  # tests/codegen/test_library.py:1 in f
      return %0
    }"""
    with pytest.raises(IndexError) as caught:
        run(text, torch.ones(2), torch.tensor([7]))
    notes = getattr(caught.value, "__notes__", ["  where tests/codegen/test_library.py:1"])
    assert notes[0].startswith("  where tests/codegen/test_library.py:1")


def test_operators_record_nothing_for_autograd() -> None:
    text = "graph f(%x: f32[2]) {\n  %0: f32[2] = library aten.sin.default(%x)\n  return %0\n}"
    (found,) = run(text, torch.ones(2, requires_grad=True))
    assert not found.requires_grad


def test_the_generator_is_set_and_read_where_the_graph_says() -> None:
    state = torch.Generator().manual_seed(3).get_state()
    text = """graph f() {
      %0: u8[5056] = random_state
      %1: u8[5056] = constant #0
      %2: nothing = set_random_state %1
      %3: f32[2] = library aten.rand.default([2])
      %4: nothing = set_random_state %0
      return %3
    }"""
    graph = parse_graph(text, [state])
    torch.manual_seed(11)
    (found,) = LibraryExecutable(plan_library(graph))([])
    assert torch.equal(found, torch.rand(2, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(11)))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_random_graphs_give_what_the_interpreter_gives(graph: Any) -> None:
    if graph.writes or any(result.path for result in graph.results):
        return  # the edge of a program is applied outside: tests/programs/test_boundary.py
    made = random_inputs(graph)
    outputs = LibraryExecutable(plan_library(graph))(copy.deepcopy(made))
    roots = dict(zip(dict.fromkeys(graph.roots()), outputs, strict=True))
    for result, wanted in zip(graph.results, interpret(graph, copy.deepcopy(made)), strict=True):
        if isinstance(wanted, torch.Tensor):
            assert same_bits(wanted, roots[result.value])


def test_numbers_that_are_handed_out_share_no_memory() -> None:
    text = """graph f(%a: float, %b: float) {
      %0: f32[] = scalar %a, dtype=f32
      %1: f32[] = scalar %b, dtype=f32
      return %0, %1
    }"""
    first, second = run(text, 0.5, 1e39)
    assert (first.item(), second.item()) == (0.5, float("inf"))
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
