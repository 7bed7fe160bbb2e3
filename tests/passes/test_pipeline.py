"""The pipeline runs the table of passes in an order that has reasons, verified and observed."""

import logging

import pytest

from weft.errors import InternalError, UsageError
from weft.ir.graph import Graph
from weft.ir.parser import parse_graph
from weft.ir.printer import print_graph
from weft.passes import pipeline
from weft.passes.pipeline import ORDER, PASSES, Before, Pass, check_order, run_pipeline

TEXT = """graph g(%x: f32[4]) {
  %0: f32[4] = exp %x
  %1: f32[4] = exp %x
  %2: f32[4] = neg %1
  %3: f32[4] = add %0, %2
  return %3
}
"""


def test_the_passes_stand_in_the_order_that_is_asked_for() -> None:
    check_order(PASSES, ORDER)
    assert all(row.reason for row in ORDER)


def test_every_pass_has_its_place_for_a_reason() -> None:
    placed = {name for row in ORDER for name in (row.first, row.second)}
    missing = {one.name for one in PASSES} - placed
    assert not missing, f"src/weft/passes/pipeline.py: ORDER has no row for {missing}"


def test_a_wrong_order_is_an_error_with_the_reason() -> None:
    with pytest.raises(InternalError, match="pass simplify must run before cse\n  why   simplified expressions"):
        check_order(list(reversed(PASSES)), [row for row in ORDER if row.second == "cse"])


def test_an_order_of_passes_that_are_not_there_is_an_error() -> None:
    with pytest.raises(InternalError, match="the order of passes names weave, and there is no such pass"):
        check_order(PASSES, (Before("fold", "weave", "because"),))


def test_passes_have_names_and_functions_of_their_own() -> None:
    assert len({one.name for one in PASSES}) == len({one.function for one in PASSES}) == len(PASSES)


def test_the_graph_after_each_pass_can_be_seen() -> None:
    seen: dict[str, str] = {}
    after = run_pipeline(parse_graph(TEXT), observe=lambda name, graph: seen.update({name: print_graph(graph)}))
    assert list(seen) == [one.name for one in PASSES]
    assert "sub %0, %1" in seen["simplify"]
    assert "sub %0, %0" in seen["cse"].replace("%1", "%0")
    assert list(seen.values())[-1] == print_graph(after)


def test_a_disabled_pass_does_not_run() -> None:
    seen: list[str] = []
    run_pipeline(parse_graph(TEXT), disabled=["cse", "simplify"], observe=lambda name, graph: seen.append(name))
    assert seen == [one.name for one in PASSES if one.name not in ("cse", "simplify")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "dead_code",
            "pass dead_code cannot be disabled\n  why   later stages rely on it\n  fix .* fold, simplify",
        ),
        ("weave", "pass weave cannot be disabled\n  why   there is no such pass"),
    ],
)
def test_what_cannot_be_disabled_is_an_error(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_pipeline(parse_graph(TEXT), disabled=[name])


def test_a_pass_that_breaks_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_all(graph: Graph) -> Graph:
        return Graph(graph.name, graph.inputs, (), graph.results)

    monkeypatch.setattr(pipeline, "PASSES", (Pass("drop_all", drop_all),))
    with pytest.raises(InternalError, match="pass drop_all gave an invalid Graph\n  why   graph g is malformed"):
        run_pipeline(parse_graph(TEXT))
    assert run_pipeline(parse_graph(TEXT), checked=False).values == ()


def test_a_graph_that_is_invalid_before_any_pass_is_not_blamed_on_one() -> None:
    graph = parse_graph(TEXT)
    broken = Graph(graph.name, graph.inputs, graph.values[1:], graph.results)
    with pytest.raises(InternalError, match=r"^graph g is malformed"):
        run_pipeline(broken)


def test_each_pass_is_timed_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="weft"):
        run_pipeline(parse_graph(TEXT))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(PASSES)
    assert lines[3].startswith("g: dead_code ")
    assert lines[3].endswith("ms, 3 values to 2")
