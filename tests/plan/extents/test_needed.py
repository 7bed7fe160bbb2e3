"""Tiles that calls of small sizes need not run: found from what counts of results, back through all that reads."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from weft.ir.extents import Polynomial, extent_of_size
from weft.ir.graph import Graph, LiftedGraph, Result, Value
from weft.ir.ops import build
from weft.ir.types import NumberType, TensorType, contiguous
from weft.passes.bounded import bounded
from weft.passes.by_sizes import split_by_sizes
from weft.passes.within import Factor
from weft.plan.draft import Planner, ramp_of
from weft.plan.extents.parts import NEVER, VaryingSizes, parts_of, positions_of
from weft.plan.form.plan import KernelCall, Plan
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import box
from weft.plan.kernels.reduce import RowKernel
from weft.plan.plan_record import read_plan, write_plan
from weft.plan.schedule.cost import default_model
from weft.target import Target, host_target

TARGET = host_target()
SIZE = Value("input", (), NumberType("int"), name="rows")


def planned(graph: Graph, target: Target = TARGET) -> Plan:
    """The plan of a graph whose size is SIZE, or that has none."""
    has_size = SIZE in graph.inputs
    found = split_by_sizes(bounded(LiftedGraph.of(graph)), [SIZE] if has_size else [])
    within = {result.value: one for result, one in zip(found.graph.results, found.within, strict=True)}
    varying = VaryingSizes(found.sizes, within) if has_size else None
    (region,) = (
        Planner(target, 1, default_model(target), frozenset(), varying=varying).draft(found.graph).planned().regions
    )
    return region.plan


def rows_of(most: int, columns: int) -> Value:
    return Value("input", (), contiguous(torch.float32, (extent_of_size(SIZE, most), columns)), name="x")


def counts_of(call: KernelCall, size: int) -> list[int]:
    """Where the loops of a call that have an end of their own end."""
    return [end.count(size) for end in call.ends]


def mlp(x: Value) -> tuple[Value, ...]:
    weights = [
        Value("input", (), contiguous(torch.float32, sizes), name=f"w{sizes[0]}") for sizes in ((64, 96), (96, 64))
    ]
    first = build("matmul", x, weights[0])
    second = build("maximum", first, build("neg", first))
    return (*weights, first, second.operands[1], second, build("matmul", second, weights[1]))


def test_products_of_rows_leave_out_the_rows_beyond() -> None:
    x = rows_of(128, 64)
    one, other, *values = mlp(x)
    plan = planned(Graph("mlp", (x, SIZE, one, other), tuple(values), (Result(values[-1]),)))
    products = [call for call in plan.calls if isinstance(call.kernel, GemmKernel)]
    assert len(products) == 2
    for call in products:
        assert call.needed is None
        assert call.kernel.ends == (0,)
        assert [counts_of(call, size) for size in (0, 1, 77, 128)] == [[0], [1], [77], [128]]


def test_columns_that_vary_with_rows_are_left_out_too() -> None:
    x = rows_of(512, 64)
    values = (turned := build("permute", x, order=(1, 0)), build("matmul", x, turned))
    plan = planned(Graph("square", (x, SIZE), values, (Result(values[-1]),)))
    (product_,) = (call for call in plan.calls if isinstance(call.kernel, GemmKernel))
    assert product_.kernel.ends == (0,)
    assert product_.needed is not None, "rows end, and panels of columns beyond the size are no tiles of a call"
    assert max(max(column) for column in product_.needed.least) >= 256


@pytest.mark.parametrize("columns", [48, 64])
def test_every_element_that_is_read_is_computed_for_the_same_sizes(columns: int) -> None:
    x = rows_of(100, columns)
    weight = Value("input", (), contiguous(torch.float32, (columns, columns)), name="w")
    values = [build("matmul", x, weight)]
    values.append(build("max", values[0], dimensions=(1,), keep=True))
    values.append(build("expand", values[1], shape=x.type.shape))
    values.append(build("sub", values[0], values[2]))
    values.append(build("matmul", values[3], weight))
    plan = planned(Graph("rows", (x, SIZE, weight), tuple(values), (Result(values[-1]),)))
    assert sum(bool(call.ends) for call in plan.calls) >= 3
    for size in range(1, 101):
        written = {number: 0 for number, buffer in enumerate(plan.buffers) if buffer.kind == "arena"}
        for call in plan.calls:
            rows = min(counts_of(call, size), default=100)
            for number, place in enumerate(call.arguments):
                if place.buffer not in written:
                    continue
                if number < len(call.writes):
                    written[place.buffer] = max(written[place.buffer], rows)
                else:
                    assert written[place.buffer] >= rows >= size, f"{size} rows: {call.kernel.name}"


def test_a_sum_over_rows_ends_at_the_size_that_its_mask_has() -> None:
    x = rows_of(256, 64)
    weight = Value("input", (), contiguous(torch.float32, (64, 64)), name="w")
    values = (first := build("matmul", x, weight), build("sum", first, dimensions=(0,), keep=False))
    plan = planned(Graph("sum", (x, SIZE, weight), values, (Result(values[-1]), Result(first))))
    for call in plan.calls:
        if isinstance(call.kernel, GemmKernel | RowKernel):
            assert counts_of(call, 77) == [77]
            assert call.kernel.ends == ((0,) if isinstance(call.kernel, GemmKernel) else (1,))


def test_without_sizes_that_vary_plans_are_as_ever() -> None:
    x = Value("input", (), contiguous(torch.float32, (128, 64)), name="x")
    one, other, *values = mlp(x)
    plan = planned(Graph("mlp", (x, one, other), tuple(values), (Result(values[-1]),)))
    assert all(call.needed is None and not call.ends for call in plan.calls)


def test_a_plan_s_text_keeps_what_is_needed() -> None:
    x = rows_of(128, 64)
    one, other, *values = mlp(x)
    plan = planned(Graph("mlp", (x, SIZE, one, other), tuple(values), (Result(values[-1]),)))
    assert read_plan(write_plan(plan)) == plan
    assert plan != replace(plan, calls=tuple(replace(call, ends=()) for call in plan.calls))


@pytest.mark.parametrize("seed", range(40))
def test_positions_of_a_box_hold_all_that_its_bytes_have(seed: int) -> None:
    chance = random.Random(seed)
    steps = [(chance.choice((1, 2, 3, 4, 8, 16, 64)), chance.randint(1, 5)) for _ in range(chance.randint(1, 3))]
    found = box(chance.randint(0, 300), steps, 4)
    stride, count = chance.choice((4, 8, 16, 64)), chance.randint(1, 12)
    assert found is not None
    first, last = positions_of(found, stride, count)
    starts = [
        found.low + sum(at * step for at, (step, _) in zip(place, found.steps, strict=True))
        for place in product(*(range(times) for _, times in found.steps))
    ]
    seen = {(start + byte) // stride % count for start in starts for byte in range(found.item)}
    assert first <= min(seen)
    assert max(seen) <= last


def test_factors_of_a_merged_dimension_have_parts_of_their_own() -> None:
    batch, length = (Polynomial.atom(Value("input", (), NumberType("int"), name=name)) for name in "bl")
    kind: TensorType = contiguous(torch.float32, (12, 5))
    found = parts_of([step * 4 for step in kind.strides], [(Factor(3, batch), Factor(4, length)), (Factor(5),)])
    assert {(part.stride, len(part.least)): part.size for part in found.values()} == {(80, 3): batch, (20, 4): length}
    assert all(np.array_equal(part.least, np.arange(len(part.least))) for part in found.values())


def test_gaps_behind_positions_of_a_result_are_needed_by_nobody() -> None:
    height, width = (Polynomial.atom(Value("input", (), NumberType("int"), name=name)) for name in "hw")
    within = [(), (Factor(3),), (Factor(4, height),), (Factor(5, width),)]
    found = parts_of([step * 4 for step in (1000, 42, 7, 1)], within)
    assert {key[:2] for key in found} == {(28, 6), (4, 7)}
    assert [list(part.least[-2:]) for part in found.values()] == [[NEVER, NEVER]] * 2
    assert not parts_of([step * 4 for step in (7, 3)], within[2:])  # gaps of no whole row
    assert {key[:2] for key in parts_of([step * 4 for step in (13, 2)], within[2:])} == {(52, 4)}


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.arange(5), (1, 5)),
        (torch.arange(5, dtype=torch.int32), (1, 5)),
        (torch.arange(6).reshape(2, 3), (1, 6)),
        (torch.arange(3)[:, None].expand(3, 4), (4, 3)),
        (torch.arange(3).expand(4, 3), (1, 3)),
        (torch.arange(3)[:, None].expand(2, 3, 5), (5, 3)),
        (torch.tensor([0, 0, 1, 1, 2]), (2, 3)),
        (torch.arange(1, 5), None),
        (torch.tensor([0, 1, 2, 0, 2, 1]), None),
        (torch.tensor([0, 2, 4]), None),
        (torch.tensor([], dtype=torch.int64), None),
        (torch.arange(5.0), None),
        (torch.tensor([False, True]), None),
    ],
)
def test_positions_are_whole_numbers_from_0_on(tensor: torch.Tensor, expected: tuple[int, int] | None) -> None:
    assert ramp_of(tensor) == expected


def test_whole_numbers_that_are_handed_out_are_computed_beyond_too() -> None:
    x = rows_of(128, 64)
    values = (first := build("add", x, x), build("cast", first, dtype=torch.int64))
    plan = planned(Graph("places", (x, SIZE), values, (Result(values[-1]),)))
    assert all(call.needed is None and not call.ends for call in plan.calls)
