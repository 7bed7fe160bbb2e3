"""How tiles are given to lanes: what is shared out, what stays whole, and that any order the waits allow is right."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.memory.test_arena import NEGATE, chain
from tests.plan.plan_runner import EAGER, TARGET, Machine, random_plan

from weft.plan.check import check_plan
from weft.plan.form.dependencies import Footprints
from weft.plan.form.plan import Buffer, BufferKind, KernelCall, Location, Plan, Run, Wait
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.gemm import Epilogue, GemmKernel, Matrix, choose_schedule
from weft.plan.kernels.kernel import Boxes
from weft.plan.kernels.loop import LoopExpression, plan_loop
from weft.plan.memory.arena import live_bytes, place
from weft.plan.schedule.cost import MEASURED, default_model
from weft.plan.schedule.lanes import IN_ORDER, IN_TURN, LanePace, Scheduling, frugal_order, schedule

MODEL = default_model(TARGET)
NEAR = replace(MODEL, wait=0.1e-6, check=0.03e-6, lane=0.5e-6, transfer=80e9)  # cores that share a cache


def product(out: Location, left: int, right: int, sizes: tuple[int, int], width: int = 0) -> KernelCall:
    """Make a call that multiplies a matrix of rows by a square one, into columns of a matrix of some width."""
    return wide_product(out, left, right, (sizes[0], sizes[1], sizes[1]), width)


def wide_product(out: Location, left: int, right: int, sizes: tuple[int, int, int], width: int = 0) -> KernelCall:
    """Make a call that multiplies matrices: sizes are rows, columns and the length of a sum."""
    rows, columns, inner = sizes
    kernel = GemmKernel(
        "product", "f32", (), rows, columns, inner, Matrix((), inner, 1), Matrix((), columns, 1),
        Matrix((), width or columns, 1), Epilogue(), choose_schedule("f32", sizes, TARGET),
    )  # fmt: skip
    return KernelCall(kernel, (out,), (Location(left), Location(right)))


def elementwise(out: int, source: int, count: int) -> KernelCall:
    view = (View("f32", (1,)),)
    body = (Instruction("neg", (0,), "f32"),)
    kernel = plan_loop(LoopExpression("negate", (count,), view, view, body, (1,)), TARGET)
    return KernelCall(kernel, (Location(out),), (Location(source),))


def buffers(*kinds: BufferKind, size: int) -> tuple[Buffer, ...]:
    return tuple(Buffer(kind, kinds[:number].count(kind), size) for number, kind in enumerate(kinds))


def towers(count: int, rows: int, size: int = 128) -> Plan:
    """Make side by side chains of three products, whose results lie beside each other in one output."""
    places = [Buffer("output", 0, 4 * rows * size * count), Buffer("input", 0, 4 * rows * size)]
    calls = []
    for tower in range(count):
        left = 1
        for level in range(3):
            weight = len(places)
            places.append(Buffer("constant", tower * 3 + level, 4 * size * size))
            if level < 2:
                out, width = Location(len(places)), size
                places.append(Buffer("arena", tower * 2 + level, 4 * rows * size))
            else:
                out, width = Location(0, 4 * size * tower), size * count
            calls.append(product(out, left, weight, (rows, size), width))
            left = out.buffer
    return Plan(tuple(places), tuple(calls))


def joined(plan: Plan, count: int, rows: int, size: int = 128) -> Plan:
    """Multiply what all towers give, now with a hyperbolic tangent, by one more matrix."""
    tanh = Epilogue(body=(Instruction("tanh", (0,), "f32"),))
    places = (
        Buffer("arena", count * 2, plan.buffers[0].bytes),
        *plan.buffers[1:],
        Buffer("constant", count * 3, 4 * size * count * 16),
        Buffer("output", 0, 4 * rows * 16),
    )
    calls = [
        replace(call, kernel=replace(call.kernel, epilogue=tanh)) if call.writes[0].buffer == 0 else call
        for call in plan.calls
    ]
    last = wide_product(Location(len(places) - 1), 0, len(places) - 2, (rows, 16, size * count))
    return Plan(places, (*calls, last))


def count_waits(plan: Plan) -> int:
    return sum(isinstance(item, Wait) for lane in plan.lanes for item in lane)


def runs(plan: Plan, lane: int) -> list[Run]:
    return [item for item in plan.lanes[lane] if isinstance(item, Run)]


def test_a_large_product_is_shared_out_evenly() -> None:
    plan = schedule(
        Plan(buffers("output", "input", "input", size=4 << 20), (product(Location(0), 1, 2, (1024, 1024)),)), 2, MODEL
    )
    tiles = plan.calls[0].kernel.tile_count
    sizes = [sum(run.end - run.begin for run in runs(plan, lane)) for lane in (0, 1)]
    assert sum(sizes) == tiles
    assert abs(sizes[0] - sizes[1]) <= max(2, tiles // 10)
    assert count_waits(plan) == 0


def test_small_towers_go_one_to_a_lane_without_waits() -> None:
    plan = schedule(towers(8, 32), 2, MODEL)
    assert len(plan.lanes) == 2
    assert count_waits(plan) <= 1
    whole = [run for lane in (0, 1) for run in runs(plan, lane) if run.begin == 0]
    assert len(whole) >= 22


@pytest.mark.parametrize("pace", [None, IN_TURN], ids=["fastest", "in turn"])
@settings(max_examples=60, deadline=None)
@given(shares=st.lists(st.floats(0.7, 1.3), min_size=len(MEASURED), max_size=len(MEASURED)))
def test_whatever_exactly_a_machine_measures_towers_stay_whole_and_lanes_end_together(
    pace: LanePace | None, shares: list[float]
) -> None:
    figures = {name: getattr(NEAR, name) * share for name, share in zip(MEASURED, shares, strict=True)}
    plan = joined(towers(8, 8), 8, 8)
    found = Scheduling(plan, 2, replace(NEAR, **figures)).schedule(pace)
    busy = [sum(end - start for start, end in lane) for lane in found.spans]
    assert min(busy) > 0.95 * max(busy)
    assert count_waits(found.plan) <= 2
    assert sum(len(runs(found.plan, lane)) for lane in (0, 1)) <= len(plan.calls) + 1  # the last one is shared out


def test_each_tower_stays_on_its_lane() -> None:
    plan = schedule(towers(4, 64), 4, MODEL)
    assert [len(runs(plan, lane)) for lane in range(4)] == [3, 3, 3, 3]
    assert count_waits(plan) == 0


def test_a_program_too_small_to_gain_stays_on_one_lane() -> None:
    plan = schedule(towers(2, 1, size=8), 4, MODEL)
    assert len(plan.lanes) == 1
    assert runs(plan, 0) == [Run(number, 0, call.kernel.tile_count) for number, call in enumerate(plan.calls)]


def test_a_chain_of_small_calls_stays_on_one_lane() -> None:
    calls = tuple(elementwise(number + 1, number, 4096) for number in range(20))
    plan = schedule(Plan(buffers("input", *["arena"] * 19, "output", size=16384), calls), 2, MODEL)
    assert len(plan.lanes) == 1


def test_lanes_do_not_wait_between_calls_that_are_cut_alike() -> None:
    count = 1 << 17
    calls = tuple(elementwise(number + 1, number, count) for number in range(4))
    plan = schedule(Plan(buffers("input", "arena", "arena", "arena", "output", size=4 * count), calls), 2, EAGER)
    assert len(plan.lanes) == 2
    assert all(isinstance(item, Run) for item in plan.lanes[0][:3])


def test_no_lane_is_far_ahead_where_memory_is_large() -> None:
    count = 1 << 22
    calls = tuple(elementwise(number + 1, number, count) for number in range(12))
    plan = schedule(Plan(buffers("input", *["arena"] * 11, "output", size=4 * count), calls), 2, EAGER)
    assert place(plan).arena_bytes <= 5 * 4 * count


def test_a_lane_that_would_wait_does_what_is_less_urgent_first() -> None:
    chain, wide = 12, 1 << 20
    places = [Buffer("input", 0, 4 * wide), Buffer("output", 0, 4 * wide)]
    calls, left = [], 0
    for step in range(chain):  # one after the other, each too small to be shared out; then what both lanes do
        places.append(Buffer("arena", step, 4 * 64 * 64))
        calls.append(product(Location(len(places) - 1), left, 0, (8, 64)))
        left = len(places) - 1
    calls.append(elementwise(1, left, wide))
    for number in range(3):
        places.append(Buffer("output", 1 + number, 4 * 64 * 64))
        calls.append(product(Location(len(places) - 1), 0, 0, (8, 64)))
    plan = schedule(Plan(tuple(places), tuple(calls)), 2, MODEL)
    written = [[plan.calls[run.call].writes[0].buffer for run in runs(plan, lane)] for lane in (0, 1)]
    before = [lane[: lane.index(1)] for lane in written]  # the wide call's output
    assert {buffer for lane in before for buffer in lane} >= set(range(left + 1, len(places)))


def test_in_order_no_call_is_taken_much_before_its_turn() -> None:
    plan = schedule(towers(8, 64), 2, EAGER, IN_ORDER)
    order = [call.reads[1].buffer for call in plan.calls]
    given = [call.reads[1].buffer for call in towers(8, 64).calls]
    assert all(abs(order.index(buffer) - place) <= len(plan.lanes) for place, buffer in enumerate(given))


def test_in_turn_each_lane_ends_a_tower_before_it_begins_another() -> None:
    plan = schedule(towers(4, 32), 2, MODEL, IN_TURN)
    for lane in range(2):
        places = [plan.calls[run.call].writes[0] for run in runs(plan, lane)]
        ends = [place.offset // (4 * 128) for place in places if place.buffer == 0]
        assert [place.buffer == 0 for place in places] == [False, False, True] * len(ends)
    assert count_waits(plan) == 0


def test_the_times_of_a_schedule_follow_each_other_and_end_with_it() -> None:
    for lanes in (1, 2):
        scheduled = Scheduling(towers(8, 32), lanes, MODEL).schedule()
        for runs_of_lane, spans in zip(scheduled.plan.lanes, scheduled.spans, strict=True):
            assert sum(isinstance(item, Run) for item in runs_of_lane) == len(spans)
            assert [time for span in spans for time in span] == sorted(time for span in spans for time in span)
        assert max(end for spans in scheduled.spans for _, end in spans) <= scheduled.seconds + 1e-12


def test_one_lane_runs_all_calls_in_order() -> None:
    plan = schedule(towers(2, 32), 1, MODEL)
    assert [run.call for run in runs(plan, 0)] == list(range(6))


def test_a_plan_without_calls_has_one_empty_lane() -> None:
    assert schedule(Plan((), ()), 4, MODEL).lanes == ((),)


def test_the_same_plan_gets_the_same_lanes() -> None:
    assert schedule(towers(8, 32), 4, MODEL) == schedule(towers(8, 32), 4, MODEL)


def agrees_in_any_order(seed: int, lanes: int) -> None:
    plain = random_plan(seed)
    wanted = Machine(place(plain), seed).serially()
    plan = place(schedule(plain, lanes, EAGER))
    check_plan(plan)
    assert Machine(plan, seed + 1).serially() == wanted
    for order in range(2):
        assert Machine(plan, seed + order).in_any_order(order) == wanted


@pytest.mark.parametrize("lanes", [1, 2, 4])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_any_order_that_the_waits_allow_gives_what_the_calls_in_order_give(lanes: int, seed: int) -> None:
    agrees_in_any_order(seed, lanes)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_many_random_plans_give_the_same_in_any_order(lanes: int) -> None:
    for seed in range(60):  # others are drawn by the test above
        agrees_in_any_order(seed, lanes)


@pytest.mark.parametrize("seed", range(2))
def test_plans_without_waits_are_wrong_in_some_order(seed: int) -> None:
    plain = random_plan(1000 + seed)
    plan = place(schedule(plain, 2, EAGER))
    lanes = [tuple(item for item in lane if isinstance(item, Run)) for lane in plan.lanes]
    assert len(lanes) == 2
    wanted = Machine(plan, 0).serially()
    found = {tuple(Machine(replace(plan, lanes=tuple(lanes)), 0).in_any_order(order)) for order in range(10)}
    assert found != {tuple(wanted)}


# Another order of calls: less memory in use at once, and the same results.


def test_each_branch_is_computed_to_its_end_before_the_next() -> None:
    branches, levels = 6, 3
    buffers = [Buffer("input", 0, 256), *(Buffer("arena", number, 256) for number in range(branches * levels))]
    joined = Location(len(buffers))
    buffers.append(Buffer("output", 0, 256 * branches))
    calls = []
    for level in range(levels):
        for branch in range(branches):
            source = 0 if level == 0 else 1 + (level - 1) * branches + branch
            calls.append(KernelCall(NEGATE, (Location(1 + level * branches + branch),), (Location(source),)))
    for branch in range(branches):
        out = Location(joined.buffer, 256 * branch)
        calls.append(KernelCall(NEGATE, (out,), (Location(1 + (levels - 1) * branches + branch),)))
    plan = Plan(tuple(buffers), tuple(calls))
    assert live_bytes(plan) >= branches * 256
    assert live_bytes(frugal_order(Footprints(plan))) == 2 * 256


def test_an_order_that_is_as_good_is_kept() -> None:
    plan = chain((1, 0), (2, 1), (3, 2))
    assert frugal_order(Footprints(plan)) == plan


def test_random_plans_compute_the_same_with_no_more_memory() -> None:
    changed = 0
    for seed in range(60):
        plan = random_plan(seed)
        found = frugal_order(Footprints(plan))
        assert live_bytes(found) <= live_bytes(plan)
        assert Machine(place(found), 1).serially() == Machine(place(plan), 2).serially()
        changed += found.calls != plan.calls
    assert changed > 5


def test_what_calls_touch_is_learned_once_for_all_their_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    boxes = GemmKernel.boxes

    def counting(kernel: GemmKernel, begin: int, end: int) -> Boxes:
        asked.append((id(kernel), begin, end))
        return boxes(kernel, begin, end)

    monkeypatch.setattr(GemmKernel, "boxes", counting)
    plan = towers(8, 32)
    footprints = Footprints(plan)
    ordered = replace(plan, calls=tuple(reversed(plan.calls)))
    for found in (footprints, Footprints(ordered, like=footprints)):
        for number in range(len(plan.calls)):
            assert found.whole(number) == Footprints(found.plan).whole(number)
            first, last = found.whole(0), found.whole(number)
            pairs = [(one, other) for one in first for other in last if one.buffer == other.buffer]
            assert all(found.meet(*pair) == pair[0].meets(pair[1]) == found.meet(*pair) for pair in pairs)
    # Each once here, and once in each of the other footprints above.
    assert len(asked) == 3 * len(plan.calls)
