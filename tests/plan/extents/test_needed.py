"""Tiles that calls of small sizes need not run: found from what counts of results, back through all that reads."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from weft.ir.extents import Polynomial, extent_of_size
from weft.ir.graph import Graph, Result, Value
from weft.ir.lifted import LiftedGraph
from weft.ir.ops import build
from weft.ir.types import NumberType, TensorType, contiguous
from weft.passes.bounded import bounded
from weft.passes.by_sizes import split_by_sizes
from weft.passes.within import Factor
from weft.plan.draft import Planner, is_ramp
from weft.plan.extents.parts import VaryingSizes, parts_of, positions_of
from weft.plan.form.plan import KernelCall, Plan
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import box
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


def least_of(call: KernelCall) -> tuple[int, ...]:
    """The numbers that the one size must be above for the ranges of a call's tiles."""
    assert call.needed is not None
    (row,) = call.needed.least
    return row


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
        least = least_of(call)
        assert least[0] == 0
        assert max(least) >= 112, "small tiles"
        assert list(least) == sorted(least)


def test_every_row_that_a_tile_reads_is_computed_for_the_same_sizes() -> None:
    x = rows_of(100, 64)
    one, other, *values = mlp(x)
    plan = planned(Graph("mlp", (x, SIZE, one, other), tuple(values), (Result(values[-1]),)))
    for size in range(1, 101):
        written: dict[int, list[tuple[int, int]]] = {}
        for call in plan.calls:
            for begin, end in ranges(call, size):
                for number, (place, found) in enumerate(
                    zip(call.arguments, call.kernel.boxes(begin, end), strict=True)
                ):
                    is_made = plan.buffers[place.buffer].kind == "arena"
                    if not is_made or found is None:
                        continue
                    span = (found.low + place.offset, found.high + place.offset)
                    if number < len(call.writes):
                        written.setdefault(place.buffer, []).append(span)
                    else:
                        assert covers(written.get(place.buffer, []), span), f"{size} rows: {call.kernel.name}"


def ranges(call: KernelCall, size: int) -> list[tuple[int, int]]:
    if call.needed is None:
        return [(0, call.kernel.tile_count)]
    pairs = zip(call.needed.starts, call.needed.starts[1:], strict=False)
    return [pair for pair, least in zip(pairs, least_of(call), strict=True) if size > least]


def covers(spans: list[tuple[int, int]], wanted: tuple[int, int]) -> bool:
    place = wanted[0]
    for first, last in sorted(spans):
        if first <= place:
            place = max(place, last)
    return place >= wanted[1]


def test_a_sum_over_rows_needs_what_its_mask_shows_alone() -> None:
    x = rows_of(256, 64)
    weight = Value("input", (), contiguous(torch.float32, (64, 64)), name="w")
    values = (first := build("matmul", x, weight), build("sum", first, dimensions=(0,), keep=False))
    plan = planned(Graph("sum", (x, SIZE, weight), values, (Result(values[-1]), Result(first))))
    product_call = next(call for call in plan.calls if isinstance(call.kernel, GemmKernel))
    assert max(least_of(product_call)) > 200
    assert all(call.needed is None for call in plan.calls if call is not product_call)


def test_without_sizes_that_vary_plans_are_as_ever() -> None:
    x = Value("input", (), contiguous(torch.float32, (128, 64)), name="x")
    one, other, *values = mlp(x)
    plan = planned(Graph("mlp", (x, one, other), tuple(values), (Result(values[-1]),)))
    assert all(call.needed is None for call in plan.calls)


def test_a_plan_s_text_keeps_what_is_needed() -> None:
    x = rows_of(128, 64)
    one, other, *values = mlp(x)
    plan = planned(Graph("mlp", (x, SIZE, one, other), tuple(values), (Result(values[-1]),)))
    assert read_plan(write_plan(plan)) == plan
    assert plan != replace(plan, calls=tuple(replace(call, needed=None) for call in plan.calls))


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


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.arange(5), True),
        (torch.arange(5, dtype=torch.int32), True),
        (torch.arange(6).reshape(2, 3), True),
        (torch.arange(1, 5), False),
        (torch.arange(5.0), False),
        (torch.tensor([False, True]), False),
    ],
)
def test_positions_are_whole_numbers_from_0_on(tensor: torch.Tensor, expected: bool) -> None:
    assert is_ramp(tensor) is expected


def test_whole_numbers_that_are_handed_out_are_computed_beyond_too() -> None:
    x = rows_of(128, 64)
    values = (first := build("add", x, x), build("cast", first, dtype=torch.int64))
    plan = planned(Graph("places", (x, SIZE), values, (Result(values[-1]),)))
    assert all(call.needed is None for call in plan.calls)
