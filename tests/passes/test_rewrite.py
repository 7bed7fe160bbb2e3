"""A Graph is rebuilt with operands, places and names in order."""

import pytest

from weft.errors import InternalError
from weft.ir.graph import Place, Value
from weft.ir.ops import build
from weft.ir.parser import parse_graph
from weft.ir.verifier import verify
from weft.passes.rewrite import rebuild

TEXT = """graph g(%x: f32[4]) {
  %0: f32[4] = exp %x  # net.py:1
  %1: f32[4] = sin %0  # net.py:2
  %2: f32[4] = library aten.rand_like.default(%1)  # net.py:3
  %3: f32[4] = add %1, %2  # net.py:4
  write %x <- %3
  return %1
}
"""


def test_a_change_that_changes_nothing_gives_back_the_graph_itself() -> None:
    graph = parse_graph(TEXT)
    assert rebuild(graph, lambda value, groups: value) is graph


def test_users_results_and_writes_follow_and_new_values_take_over_the_line() -> None:
    graph = parse_graph(TEXT)

    def two_for_sin(value: Value, groups: object) -> Value:
        if value.op != "sin":
            return value
        return build("cos", build("neg", *value.operands))

    after = rebuild(graph, two_for_sin)
    verify(after)
    assert [value.op for value in after] == ["exp", "neg", "cos", "library", "add"]
    assert after.values[2].place == Place("net.py", 2)
    assert next(after.roots()) is after.values[2]


def test_values_with_effects_are_never_offered() -> None:
    offered: list[str] = []

    def watch(value: Value, groups: object) -> Value:
        offered.append(value.op)
        return value

    rebuild(parse_graph(TEXT), watch)
    assert offered == ["exp", "sin", "add"]


def test_a_replacement_of_another_type_is_an_error_of_ours() -> None:
    graph = parse_graph(TEXT)
    with pytest.raises(InternalError, match=r"a pass replaces <Value sin: f32\[4\]> by .*, which is of another type"):
        rebuild(graph, lambda value, _: build("reshape", value, shape=(2, 2)) if value.op == "sin" else value)
