"""Operators become values, one each, as eager calls them."""

from __future__ import annotations

import torch
from tests.trace.traces import lines, traced


def test_an_operator_is_a_library_value_with_its_arguments() -> None:
    found = traced(lambda x: torch.add(x, x, alpha=2).sum(0), torch.ones(2, 3))
    assert lines(found.graph) == [
        "graph f(%x: f32[2,3]) {",
        "%0: f32[2,3] = library aten.add.Tensor(%x, %x, alpha=2)",
        "%1: f32[3] = library aten.sum.dim_IntList(%0, [0])",
        "return %1",
    ]


def test_an_operator_with_several_results_is_a_tuple_and_its_items() -> None:
    found = traced(lambda x: x.max(0)[1], torch.ones(2, 3))
    assert lines(found.graph)[1:3] == [
        "%0: (f32[3], i64[3]) = library aten.max.dim(%x, 0)",
        "%1: f32[3] = item %0, index=0",
    ]


def test_an_in_place_operator_is_an_update_and_a_write() -> None:
    found = traced(lambda x: x.add_(1), torch.ones(2))
    assert lines(found.graph) == [
        "graph f(%x: f32[2]) {",
        "%0: f32[2] = update aten.add_.Tensor(!0, 1) on !0 = %x",
        "write %x <- %0",
        "return %x",
    ]


def test_a_write_through_a_view_names_the_way_to_it() -> None:
    found = traced(lambda x: x.t()[0].mul_(2), torch.ones(2, 3))
    assert any("on !0 = %x via aten.t.default(_) via aten.select.int(_, 0, 0)" in line for line in lines(found.graph))


def test_in_place_changes_of_sizes_are_views() -> None:
    found = traced(lambda x: x.clone().unsqueeze_(0).t_(), torch.ones(2))
    assert [line.partition("library ")[2].partition("(")[0] for line in lines(found.graph)[1:-1]] == [
        "aten.clone.default",
        "aten.unsqueeze.default",
        "aten.t.default",
    ]


def test_values_know_the_line_of_the_user() -> None:
    found = traced(lambda x: x.exp(), torch.ones(2))
    place = found.graph.values[0].place
    assert place is not None
    assert place.filename == __file__


def test_data_written_in_the_code_is_a_constant_that_is_copied() -> None:
    found = traced(lambda x: x + torch.tensor([1.0, 2.0]), torch.ones(2))
    assert [value.op for value in found.graph.values] == ["constant", "library", "library"]
    assert found.graph.values[0].attributes["tensor"].tolist() == [1.0, 2.0]


def test_an_out_argument_is_written() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, 2, out=y)

    found = traced(function, torch.ones(2), torch.zeros(2))
    assert lines(found.graph)[-2:] == ["write %y <- %0", "return %y"]
