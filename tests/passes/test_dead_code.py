"""What nobody needs goes; what draws random numbers, checks or writes stays."""

import torch
from tests.passes.runs import assert_same

from weft.ir.parser import parse_graph
from weft.passes.dead_code import remove_dead_code
from weft.passes.rewrite import has_effect, is_reproducible


def test_random_numbers_drawn_for_nothing_still_advance_the_generator() -> None:
    graph = parse_graph(
        """graph g(%x: f32[4]) {
             %0: f32[4] = library aten.rand_like.default(%x)
             %1: f32[4] = update aten.normal_.default(!0) on !0 = %x
             %2: (f32[4], bool[4]) = library aten.native_dropout.default(%x, 0.5, True)
             %3: f32[4] = exp %x
             %4: f32[4] = library aten.rand_like.default(%x)
             return %4
           }"""
    )
    after = remove_dead_code(graph)
    assert len(after.values) == 4
    assert_same(graph, after, [torch.ones(4)])


def test_a_setting_of_the_random_state_stays_with_what_it_sets() -> None:
    graph = parse_graph("graph g() { %0: u8[5056] = random_state %1: nothing = set_random_state %0 return }")
    assert remove_dead_code(graph) is graph


def test_a_result_of_several_keeps_the_operator_but_not_the_other_items() -> None:
    graph = parse_graph(
        """graph g(%x: f32[4]) {
             %0: (f32[4], i64[4]) = library aten.sort.default(%x)
             %1: f32[4] = item %0, index=0
             %2: i64[4] = item %0, index=1
             return %2
           }"""
    )
    assert [value.attributes.get("index") for value in remove_dead_code(graph)] == [None, 1]


def test_effects_and_memory_nobody_wrote_are_told_apart() -> None:
    graph = parse_graph(
        """graph g(%x: f32[4]) {
             %0: f32[4] = library aten.rand_like.default(%x)
             %1: f32[4] = library aten.empty_like.default(%x)
             %2: f32[4] = library aten.exp.default(%x)
             %3: f32[4] = exp %x
             return
           }"""
    )
    assert [has_effect(value) for value in graph] == [True, False, False, False]
    assert [is_reproducible(value) for value in graph] == [False, False, True, True]
