"""Inputs and outputs that need no larger memory: those that all loops leave where a call's sizes end."""

from __future__ import annotations

import torch
from tests.plan.extents.test_needed import SIZE, TARGET, rows_of

from weft.ir.graph import Graph, LiftedGraph, Result, Value
from weft.ir.ops import build
from weft.ir.types import contiguous
from weft.passes.bounded import bounded
from weft.passes.by_sizes import split_by_sizes
from weft.passes.within import prefix
from weft.plan.draft import Planner
from weft.plan.extents.parts import VaryingSizes
from weft.plan.schedule.cost import default_model


def tight(graph: Graph) -> set[tuple[str, int]]:
    """The kinds and numbers of what is tight of a graph whose first input varies."""
    found = split_by_sizes(bounded(LiftedGraph.of(graph)), [SIZE])
    within = {result.value: one for result, one in zip(found.graph.results, found.within, strict=True)}
    given = {found.graph.inputs[0]: tuple(map(prefix, graph.inputs[0].type.shape))}
    varying = VaryingSizes(found.sizes, within, given)
    planner = Planner(TARGET, 1, default_model(TARGET), frozenset(), varying=varying)
    (region,) = planner.draft(found.graph).planned().regions
    return {(region.plan.buffers[number].kind, region.plan.buffers[number].index) for number in region.plan.tight}


def test_rows_that_are_computed_one_by_one_are_tight() -> None:
    x = rows_of(128, 64)
    weight = Value("input", (), contiguous(torch.float32, (64, 48)), name="w")
    values = (first := build("matmul", x, weight), build("exp", first))
    kinds = {kind for kind, _ in tight(Graph("rows", (x, SIZE, weight), values, (Result(values[-1]),)))}
    assert kinds == {"input", "output"}


def test_a_sum_over_rows_reads_no_row_beyond() -> None:
    x = rows_of(128, 64)
    values = (build("sum", x, dimensions=(0,), keep=False),)
    kinds = {kind for kind, _ in tight(Graph("sum", (x, SIZE), values, (Result(values[-1]),)))}
    assert kinds == {"input"}


def test_what_is_read_across_in_squares_is_tight() -> None:
    x = rows_of(128, 64)
    values = (turned := build("permute", x, order=(1, 0)), build("exp", turned))
    assert ("input", 0) in tight(Graph("turned", (x, SIZE), values, (Result(values[-1]),)))
