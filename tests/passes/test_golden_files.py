"""What each pass makes of a Graph, as text; to add a case, write a Graph and `--- pass` and run `pytest --bless`."""

from collections.abc import Callable

import pytest
from tests.passes.golden_cases import CASES, FUNCTIONS, GoldenCase

from weft.ir.printer import print_graph
from weft.ir.verifier import verify
from weft.passes.pipeline import PASSES

BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@BY_NAME
def test_a_pass_gives_the_graph_in_its_golden_file(case: GoldenCase, golden: Callable[[str, str, str], None]) -> None:
    graph = case.graph()
    verify(graph)
    text = case.text
    for name in case.passes:
        graph = FUNCTIONS[name](graph)
        verify(graph)
        text += f"--- {name}\n{print_graph(graph)}"
    golden("passes", case.name, text)


@BY_NAME
def test_the_second_run_of_a_pass_finds_nothing_to_do(case: GoldenCase) -> None:
    graph = case.graph()
    for name in case.passes:
        graph = FUNCTIONS[name](graph)
        assert FUNCTIONS[name](graph) is graph


def test_every_pass_has_a_golden_file() -> None:
    tested = {name for case in CASES for name in case.passes}
    missing = {one.name for one in PASSES} - tested
    assert not missing, f"write a Graph and a line `--- <name>` to tests/golden/passes/<case>.txt for {missing}"
