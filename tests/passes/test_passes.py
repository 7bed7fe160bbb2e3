"""What holds for every pass: the same bits in the same memory, a valid Graph, and nothing left to do."""

import inspect
import pkgutil
import typing
from collections.abc import Callable
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.passes.golden_cases import FUNCTIONS
from tests.passes.redundant_graphs import redundant_graphs
from tests.passes.runs import assert_same, inputs_for

import weft.passes
from weft.ir.graph import Graph
from weft.ir.verifier import verify
from weft.passes.pipeline import PASSES
from weft.passes.pipeline import run_pipeline as the_pipeline

EXAMPLES = settings(max_examples=60)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(graph=redundant_graphs(), seed=st.integers(0, 3))
@EXAMPLES
def test_results_keep_every_bit_and_share_memory_as_before(name: str, graph: Graph, seed: int) -> None:
    after = FUNCTIONS[name](graph)
    verify(after)
    assert_same(graph, after, inputs_for(graph, seed))


@pytest.mark.parametrize("one", PASSES, ids=lambda one: one.name)
@given(graph=redundant_graphs())
@EXAMPLES
def test_the_second_run_of_a_pass_gives_back_the_graph_itself(one, graph: Graph) -> None:
    after = one.function(graph)
    assert one.function(after) is after


def is_pass(function: Callable[..., object]) -> bool:
    """Whether a function takes one Graph and gives one."""
    kinds = typing.get_type_hints(function)
    return list(kinds.values()) == [Graph, Graph] and len(inspect.signature(function).parameters) == 1


def test_every_function_from_graph_to_graph_is_a_pass() -> None:
    modules = [import_module(found.name) for found in pkgutil.iter_modules(weft.passes.__path__, "weft.passes.")]
    own = {
        function
        for module in modules
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and is_pass(function) and function is not the_pipeline
    }
    assert own == {one.function for one in PASSES}
