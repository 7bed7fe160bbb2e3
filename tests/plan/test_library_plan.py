"""The order of library calls says what dies where and what may be written without a copy."""

from __future__ import annotations

from weft.ir.parser import parse_graph
from weft.plan.library_plan import plan_library

CHAIN = """graph f(%x: f32[3]) {
  %0: f32[3] = library aten.sin.default(%x)
  %1: f32[3] = update aten.mul_.Tensor(!0, 2) on !0 = %0
  %2: f32[3] = library aten.cos.default(%1)
  return %2
}"""


def names(text: str) -> list[str]:
    return str(plan_library(parse_graph(text))).splitlines()


def test_a_value_of_the_program_that_nobody_reads_later_is_written_in_place() -> None:
    assert names(CHAIN) == [
        "%1 = aten.sin.default(%0)",
        "%2 = aten.mul_.Tensor(%1) in place of %1",
        "%3 = aten.cos.default(%2)",
        "hand out %3",
    ]


def test_values_die_after_their_last_use_but_inputs_and_results_stay() -> None:
    plan = plan_library(parse_graph(CHAIN))
    dying = [[value.op for value in step.dying] for step in plan.steps]
    assert dying == [[], ["library"], ["update"]]
    assert plan.outputs == (plan.steps[-1].value,)


def test_an_input_is_never_written_in_place() -> None:
    text = """graph f(%x: f32[3]) {
      %0: f32[3] = update aten.mul_.Tensor(!0, 2) on !0 = %x
      return %0
    }"""
    assert plan_library(parse_graph(text)).steps[0].in_place == frozenset()


def test_what_is_read_later_is_copied_before_it_is_written() -> None:
    text = CHAIN.replace("cos.default(%1)", "add.Tensor(%0, %1)")
    assert plan_library(parse_graph(text)).steps[1].in_place == frozenset()


def test_what_a_view_still_reads_is_copied_before_it_is_written() -> None:
    text = """graph f(%x: f32[3]) {
      %0: f32[3] = library aten.sin.default(%x)
      %1: f32[2] = library aten.slice.Tensor(%0, 0, 0, 2)
      %2: f32[3] = update aten.mul_.Tensor(!0, 2) on !0 = %0
      %3: f32[2] = library aten.neg.default(%1)
      return %2, %3
    }"""
    assert plan_library(parse_graph(text)).steps[2].in_place == frozenset()


def test_a_result_is_not_written_in_place() -> None:
    text = CHAIN.replace("return %2", "return %2, %0")
    assert plan_library(parse_graph(text)).steps[1].in_place == frozenset()
