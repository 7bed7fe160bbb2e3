"""One value stands for another only where nobody who holds the results can tell."""

import torch

from weft.ir.graph import Graph
from weft.ir.parser import parse_graph
from weft.passes.redundancy import share_common_subexpressions
from weft.passes.rewrite import Groups, sources
from weft.passes.simplify import simplify


def graph_of(body: str) -> Graph:
    return parse_graph("graph g(%x: f32[4], %y: f32[4]) {" + body + "}")


def test_a_result_that_is_new_memory_does_not_become_an_input() -> None:
    graph = graph_of("%0: f32[4] = library aten.clone.default(%x) return %0")
    assert simplify(graph) is graph


def test_a_view_of_new_memory_does_not_become_a_view_of_an_input() -> None:
    graph = graph_of(
        """%0: f32[4] = library aten.clone.default(%x)
           %1: f32[2,2] = library aten.view.default(%0, [2, 2])
           return %1"""
    )
    assert simplify(graph) is graph


def test_two_results_stay_two_also_where_one_is_a_view() -> None:
    graph = graph_of(
        """%0: f32[4] = exp %x
           %1: f32[4] = exp %x
           %2: f32[2,2] = library aten.view.default(%1, [2, 2])
           return %0, %2"""
    )
    assert share_common_subexpressions(graph) is graph


def test_what_only_one_result_shows_is_shared() -> None:
    graph = graph_of(
        """%0: f32[4] = exp %x
           %1: f32[4] = exp %x
           %2: f32[4] = add %0, %1
           return %0, %2"""
    )
    assert len(share_common_subexpressions(graph).values) == 2


def test_a_copy_of_what_nobody_else_sees_goes_away() -> None:
    graph = graph_of("%0: f32[4] = exp %x %1: f32[4] = library aten.clone.default(%0) return %1")
    assert [value.op for value in simplify(graph)] == ["exp"]


def test_after_one_replacement_the_next_one_is_refused() -> None:
    graph = graph_of(
        """%0: f32[4] = exp %x
           %1: f32[4] = library aten.clone.default(%0)
           %2: f32[4] = library aten.clone.default(%0)
           return %1, %2"""
    )
    after = simplify(graph)
    assert len(after.values) == 2
    assert len(set(after.roots())) == 2


def test_the_results_of_one_operator_are_separate_unless_they_are_views() -> None:
    graph = graph_of(
        """%0: (f32[4], i64[4]) = library aten.sort.default(%x)
           %1: f32[4] = item %0, index=0
           %2: (f32[2], f32[2]) = library aten.split.Tensor(%x, 2)
           %3: f32[2] = item %2, index=0
           return %1, %3"""
    )
    _, sort_item, split, split_item = graph.values
    assert sources(sort_item) == ()
    assert sources(split_item) == (split,)


def test_a_lazy_conjugate_is_not_handed_out_for_a_plain_copy() -> None:
    graph = parse_graph(
        """graph g(%x: c64[4]) {
             %0: c64[4] = library aten.exp.default(%x)
             %1: c64[4] = library aten._conj.default(%0)
             %2: c64[4] = library aten.clone.default(%1)
             return %2
           }"""
    )
    assert simplify(graph) is graph


def test_nothing_is_replaced_where_as_strided_counts_from_the_start_of_memory() -> None:
    text = """%0: f32[4] = library aten.exp.default(%x)
              %1: f32[2] = library aten.slice.Tensor(%0, 0, 2, 4)
              %2: f32[2] = library aten.clone.default(%1)
              %3: f32[2] = library aten.detach.default(%2)
              %4: f32[2] = library aten.as_strided.default(%3, [2], [1], 0)
              %5: f32[2] = library aten.neg.default(%4)
              return %5"""
    graph = graph_of(text)
    assert simplify(graph) is graph
    free = graph_of(text.replace("as_strided.default(%3, [2], [1], 0)", "view.default(%3, [2])"))
    assert simplify(free).values[-1].operands[0].attributes["call"].target == "aten.slice.Tensor"


def test_an_update_of_a_strided_window_and_a_result_that_is_one_keep_their_base() -> None:
    graph = graph_of(
        """%0: f32[4] = library aten.exp.default(%x)
           %1: f32[4] = library aten.clone.default(%0)
           %2: f32[4] = update aten.zero_.default(!0) on !0 = %1 via aten.as_strided.default(_, [2], [1], 1)
           %3: f32[4] = library aten.sin.default(%y)
           %4: f32[4] = library aten.clone.default(%3)
           return %2, %4 via aten.as_strided.default(_, [2], [1], 1)"""
    )
    assert simplify(graph) is graph


def test_visibility_reaches_through_views() -> None:
    graph = graph_of("%0: f32[4] = exp %x %1: f32[2,2] = reshape %0, shape=[2, 2] %2: f32[4] = exp %y return %1")
    groups = Groups(graph)
    assert [groups.is_seen(value) for value in graph] == [True, True, False]
    assert not groups.may_replace(graph.values[0], constant_like(graph))


def constant_like(graph: Graph):  # a new constant of the type of the first value
    other = graph_of("%0: f32[4] = constant [1.0, 2.0, 3.0, 4.0] return")
    assert torch.equal(other.values[0].attributes["tensor"], torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert other.values[0].type == graph.values[0].type
    return other.values[0]
