"""Machine code finds the same shares of tiles as `first_tile`, of loops that end and of ranges that are needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from weft.plan.form.plan import Buffer, KernelCall, Location, LoopEnd, NeededTiles, Plan, Run
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.plan_text import plan_text
from weft.plan.schedule.cost import default_model
from weft.plan.schedule.shares import first_tile, tile_axes
from weft.runtime import lanes
from weft.runtime.executable import NativeExecutable
from weft.target import host_target

TARGET = host_target()
TEXTS, ROWS, COLUMNS = 4, 12, 32
UNTOUCHED = -7.0
MOST_CALLS = 400


@pytest.fixture(autouse=True)
def crew() -> Iterator[None]:
    """Have a crew of two, also where there are fewer cores, and the usual one afterwards."""
    lanes.stop_crew()
    lanes.start_crew(2)
    yield
    lanes.stop_crew()


def negated(row_tile: int, ends: tuple[int, ...] = ()) -> LoopKernel:
    sizes = (TEXTS, ROWS, COLUMNS)
    view = View("f32", (ROWS * COLUMNS, COLUMNS, 1))
    expression = LoopExpression("negated", sizes, (view,), (view,), (Instruction("neg", (0,), "f32"),), (1,))
    kernel = plan_loop(expression, TARGET)
    schedule = replace(kernel.schedule, row_tile=row_tile, column_tile=COLUMNS)
    return replace(kernel, sizes=sizes, outputs=(view,), inputs=(view,), ends=ends, schedule=schedule)


def plan_of(call: KernelCall, *shares: tuple[int, int]) -> Plan:
    """The call, of which each lane runs one of the shares given: the others nobody runs."""
    size = 4 * TEXTS * ROWS * COLUMNS
    return Plan(
        buffers=(Buffer("input", 0, size), Buffer("output", 0, size), Buffer("input", 1, 4), Buffer("input", 2, 4)),
        calls=(call,),
        lanes=tuple((Run(0, 0, call.kernel.tile_count, share),) for share in shares),
    )


def assert_rows(plan: Plan, texts: int, rows: int, wanted: list[tuple[int, int]]) -> None:
    """Rows that lanes compute."""
    assert_done(plan, lambda run: rows_done(run, texts, rows), lambda _: wanted)


def assert_done(
    plan: Plan, done: Callable[[NativeExecutable], list[Any]], wanted: Callable[[list[Any]], list[Any]]
) -> None:
    """What lanes compute, of all that there is; a call computes that where a worker is not free, on a busy machine."""
    run, alone = NativeExecutable(plan, TARGET), NativeExecutable(replace(plan, lanes=()), TARGET)
    everything = done(alone)
    for _ in range(MOST_CALLS):
        found = done(run)
        if found == wanted(everything):
            return
        assert found == everything
        threading.Event().wait(0.005)
    pytest.fail("no call ran on lanes")


def rows_done(run: NativeExecutable, texts: int, rows: int) -> list[tuple[int, int]]:
    given, out = torch.ones(TEXTS, ROWS, COLUMNS), torch.full((TEXTS, ROWS, COLUMNS), UNTOUCHED)
    numbers = [torch.tensor(number, dtype=torch.int32) for number in (texts, rows)]
    assert run([given, *numbers], [out])
    assert ((out == UNTOUCHED) | (out == -1)).all()
    return [(text, row) for text in range(TEXTS) for row in range(ROWS) if (out[text, row] == -1).all()]


@pytest.mark.parametrize("row_tile", [1, 3, 4, 12])
def test_loops_that_end(row_tile: int) -> None:
    kernel, of = negated(row_tile, (0, 1)), 3
    ends = (LoopEnd(2, 0, 1, TEXTS), LoopEnd(3, 0, 1, ROWS))
    call = KernelCall(kernel, (Location(1),), (Location(0),), ends=ends)
    plan, axes = plan_of(call, (0, of), (2, of)), tile_axes(call)
    for texts, rows in [(0, 0), (1, 1), (1, 12), (2, 5), (3, 7), (4, 12), (9, 99)]:
        ends_now = min(texts, TEXTS), min(rows, ROWS)
        first, second = (first_tile(axes, ends_now, (number, of), kernel.tile_count) for number in (1, 2))
        tiles = [tile for tile in range(kernel.tile_count) if not first <= tile < second]
        flat = [place for tile in tiles for place in range(tile * row_tile, (tile + 1) * row_tile)]
        wanted = [divmod(place, ROWS) for place in flat]
        assert_rows(plan, texts, rows, [(text, row) for text, row in wanted if text < texts and row < rows])


@pytest.mark.parametrize("row_tile", [3, 4, 12])
def test_last_rows_that_are_fewer(row_tile: int) -> None:
    kernel, of, half = negated(row_tile, (0, 1)), 3, COLUMNS // 2
    kernel = replace(kernel, schedule=replace(kernel.schedule, column_tile=half))
    ends = (LoopEnd(2, 0, 1, TEXTS), LoopEnd(3, 0, 1, ROWS))
    call = KernelCall(kernel, (Location(1),), (Location(0),), ends=ends)
    plan, axes = plan_of(call, (0, of), (2, of)), tile_axes(call)
    assert [axis.varies for axis in axes] == [False, kernel.line == ROWS, False]
    for texts, rows in [(0, 0), (1, 1), (1, 12), (2, 5), (3, 7), (4, 12), (9, 99)]:
        ends_now = min(texts, TEXTS), min(rows, ROWS)
        first, second = (first_tile(axes, ends_now, (number, of), kernel.tile_count) for number in (1, 2))
        left_out = [
            (flat // ROWS, flat % ROWS, tile % 2)
            for tile in range(first, second)
            for flat in range(tile // 2 * row_tile, (tile // 2 + 1) * row_tile)
        ]
        assert_done(
            plan,
            lambda run, texts=texts, rows=rows: halves_done(run, texts, rows),
            lambda everything, left_out=left_out: [place for place in everything if place not in left_out],
        )


def halves_done(run: NativeExecutable, texts: int, rows: int) -> list[tuple[int, int, int]]:
    """The halves of rows that a call computes."""
    given, out = torch.ones(TEXTS, ROWS, COLUMNS), torch.full((TEXTS, ROWS, COLUMNS), UNTOUCHED)
    assert run([given, *(torch.tensor(number, dtype=torch.int32) for number in (texts, rows))], [out])
    done = (out.view(TEXTS, ROWS, 2, COLUMNS // 2) == -1).all(-1)
    return [tuple(place) for place in done.nonzero().tolist()]


def test_ranges_that_are_needed() -> None:
    kernel = negated(1)
    needed = NeededTiles((2, 3), (0, 5, 17, 20, 48), ((0, 2, -1, 4), (-1, 0, 3, -1)))
    call = KernelCall(kernel, (Location(1),), (Location(0),), needed=needed)
    for texts, rows in [(0, 0), (1, 1), (3, 1), (3, 4), (5, 9), (1, 9)]:
        ranges = [
            range(begin, end)
            for begin, end, one, two in zip(needed.starts, needed.starts[1:], *needed.least, strict=False)
            if texts > one and rows > two
        ]
        tiles = [tile for some in ranges for tile in some]
        for of, missing in [(2, None), (3, 1)]:
            shares = [(number, of) for number in range(of) if number != missing]
            cuts = [len(tiles) * number // of for number in range(of + 1)]
            wanted = [tile for number, _ in shares for tile in tiles[cuts[number] : cuts[number + 1]]]
            assert_rows(plan_of(call, *shares), texts, rows, [divmod(tile, ROWS) for tile in wanted])


def test_a_plan_s_text_has_shares_by_number() -> None:
    call = KernelCall(
        negated(4, (0, 1)), (Location(1),), (Location(0),), ends=(LoopEnd(2, 0, 1, 4), LoopEnd(3, 0, 1, 9))
    )
    assert "lane 1: 0[share 3 of 3]" in plan_text(plan_of(call, (0, 3), (2, 3)), default_model(TARGET))
