"""Where intermediates are put: bytes are shared only where the waits order their uses, and little is wasted."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.plan.plan_runner import EAGER, Machine, random_plan

from weft.errors import InternalError
from weft.plan.check import check_plan
from weft.plan.form.plan import Buffer, KernelCall, Lane, Location, Plan, Run, Wait
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression, plan_loop
from weft.plan.memory.arena import (
    ALIGNMENT,
    Buffers,
    borrow_outputs,
    bytes_in_use,
    early_order,
    fit,
    live_bytes,
    place,
    with_waits,
)
from weft.plan.schedule.lanes import Scheduling
from weft.target import cross_target

FLOATS = (View("f32", (1,)),)
NEGATE = plan_loop(
    LoopExpression("negate", (64,), FLOATS, FLOATS, (Instruction("neg", (0,), "f32"),), (1,)), cross_target("x86_64")
)


def chain(*links: tuple[int, int], lanes: tuple[Lane, ...] = (), size: int = 256) -> Plan:
    """Make a plan of calls (written buffer, read buffer) over arena buffers of one size."""
    count = 1 + max(max(link) for link in links)
    buffers = tuple(Buffer("arena", number, size) for number in range(count))
    calls = tuple(KernelCall(NEGATE, (Location(out),), (Location(source),)) for out, source in links)
    return Plan(buffers, calls, lanes=lanes)


def test_a_chain_needs_room_for_two_buffers() -> None:
    plan = place(chain((1, 0), (2, 1), (3, 2), (4, 3)))
    assert plan.arena_bytes == live_bytes(plan) == 512
    assert plan.offsets[1] != plan.offsets[2]


def test_what_a_call_reads_and_writes_is_apart() -> None:
    plan = place(chain((1, 0)))
    assert sorted(plan.offsets) == [0, 256]


def test_buffers_begin_at_cache_lines() -> None:
    plan = place(chain((1, 0), (2, 0), (2, 1), size=260))
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets)
    assert plan.arena_bytes == 3 * 320


def test_lanes_that_do_not_wait_share_nothing() -> None:
    lanes = ((Run(0, 0, 1),), (Run(1, 0, 1),))
    assert place(chain((1, 0), (3, 2), lanes=lanes)).arena_bytes == 4 * 256


def test_a_wait_lets_lanes_share() -> None:
    lanes = ((Run(0, 0, 1),), (Wait(0, 1), Run(1, 0, 1)))
    assert place(chain((1, 0), (3, 2), lanes=lanes)).arena_bytes == 2 * 256


def test_lanes_that_take_several_turns_at_a_call_share_as_others_do() -> None:
    links = ((1, 0), (2, 1), (3, 2), (4, 3), (5, 4))
    turns = tuple(Run(call, turn, turn + 1) for call in range(len(links)) for turn in range(8))
    assert place(chain(*links, lanes=(turns,))).arena_bytes == 512


def test_a_wait_through_a_third_lane_counts_too() -> None:
    lanes = ((Run(0, 0, 1),), (Wait(0, 1), Run(1, 0, 1)), (Wait(1, 1), Run(2, 0, 1)))
    assert place(chain((1, 0), (3, 2), (5, 4), lanes=lanes)).arena_bytes == 2 * 256


def test_a_buffer_that_several_lanes_use_is_kept_until_the_last_is_done() -> None:
    lanes = ((Run(0, 0, 1), Run(2, 0, 1)), (Run(1, 0, 1),))
    plan = place(chain((1, 0), (2, 0), (4, 3), lanes=lanes))
    assert {plan.offsets[3], plan.offsets[4]}.isdisjoint({plan.offsets[0], plan.offsets[2]})


def test_small_buffers_fill_the_gaps_between_large_ones() -> None:
    sizes = (1024, 256, 256, 1024, 256)
    buffers = tuple(Buffer("arena", number, size) for number, size in enumerate(sizes))
    links = ((1, 0), (2, 1), (3, 2), (4, 3))
    calls = tuple(KernelCall(NEGATE, (Location(out),), (Location(source),)) for out, source in links)
    assert place(Plan(buffers, calls)).arena_bytes == 1024 + 256


def test_buffers_that_no_call_uses_take_no_room() -> None:
    buffers = (Buffer("arena", 0, 256), Buffer("arena", 1, 1 << 20), Buffer("output", 0, 256))
    plan = place(Plan(buffers, (KernelCall(NEGATE, (Location(2),), (Location(0),)),)))
    assert plan.arena_bytes == 256


def test_a_plan_without_calls_needs_no_arena() -> None:
    assert place(Plan((), ())).arena_bytes == 0


def test_lanes_that_wait_in_a_circle_are_refused() -> None:
    lanes: tuple[Lane, ...] = ((Wait(1, 1), Run(0, 0, 1)), (Wait(0, 1), Run(1, 0, 1)))
    with pytest.raises(InternalError, match="wait for each other"):
        place(chain((1, 0), (3, 2), lanes=lanes))


# Where buffers are placed: those that may not share bytes are apart, and little is lost between them.


SPANS = {0: (0, 3), 1: (1, 2), 2: (2, 5), 3: (3, 4), 4: (4, 6)}  # the first use of each, and the last


def of_spans(sizes: dict[int, int], spans: dict[int, tuple[int, int]]) -> Buffers:
    apart = {
        one: [other for other in spans if other != one and spans[other][0] <= last and first <= spans[other][1]]
        for one, (first, last) in spans.items()
    }
    return Buffers(sizes, apart)


def most_at_once(sizes: dict[int, int], spans: dict[int, tuple[int, int]]) -> int:
    end = max(last for _, last in spans.values())
    return max(sum(sizes[n] for n, (first, last) in spans.items() if first <= t <= last) for t in range(end + 1))


def test_a_buffer_that_reaches_too_high_is_placed_earlier_in_the_next_try() -> None:
    sizes = {0: 2, 1: 4, 2: 3, 3: 4, 4: 5}
    buffers = of_spans(sizes, SPANS)
    _, once = fit(buffers, [[1, 0, 2, 3, 4]], 10**9)
    offsets, total = fit(buffers, [[1, 0, 2, 3, 4]], most_at_once(sizes, SPANS))
    assert total < once
    assert total == most_at_once(sizes, SPANS)
    assert max(offset + sizes[number] for number, offset in offsets.items()) == total


def test_what_is_in_use_at_the_same_time_never_overlaps() -> None:
    lost = 0
    for seed in range(60):
        dice = random.Random(seed)
        sizes = {number: 64 * dice.randrange(1, 40) for number in range(dice.randrange(2, 30))}
        spans = {number: (first := dice.randrange(40), first + dice.randrange(8)) for number in sizes}
        buffers = of_spans(sizes, spans)
        offsets, total = fit(buffers, [sorted(sizes, key=lambda number: -sizes[number])], most_at_once(sizes, spans))
        for one, size in sizes.items():
            assert 0 <= offsets[one] <= total - size
            for other in buffers.apart[one]:
                assert offsets[one] + size <= offsets[other] or offsets[other] + sizes[other] <= offsets[one]
        lost += total > 1.02 * most_at_once(sizes, spans)
    assert lost < 12


def test_no_buffers_end_where_they_begin() -> None:
    assert fit(Buffers({}, {}), [[]], 0) == ({}, 0)


# How much memory random plans get, by every way of placing; and with waits for memory any order gives the same.


SEEDS = range(16)


def ways(seed: int) -> list[Plan]:
    """Place one random plan in all ways: in order, with outputs, with lanes, with both, with waits for memory."""
    plain = random_plan(seed)
    scheduled = Scheduling(plain, random.Random(seed).choice((2, 3)), EAGER).schedule()
    early = early_order(scheduled.plan, [list(lane) for lane in scheduled.spans], 0.05 * scheduled.seconds)
    waiting = with_waits(scheduled.plan, place(borrow_outputs(scheduled.plan, early, least=64), early))
    found = [place(plain), place(borrow_outputs(plain, least=64)), place(scheduled.plan)]
    return [*found, place(borrow_outputs(scheduled.plan, least=64)), waiting]


def sizes(seed: int) -> list[int]:
    """Give the bytes in use at once, the arena's bytes by every way, and how many waits the last one has."""
    found = ways(seed)
    waits = sum(isinstance(item, Wait) for lane in found[-1].lanes for item in lane)
    return [live_bytes(random_plan(seed)), *(one.arena_bytes for one in found), waits]


def test_random_plans_get_as_little_memory_as_they_did(golden: Callable[[str, str, str], None]) -> None:
    lines = ["plan: in use in order, arena in order, with outputs, with lanes, with both, with waits; waits"]
    lines += [f"{seed}: {' '.join(map(str, sizes(seed)))}" for seed in SEEDS]
    golden("plan", "memory_sizes", "\n".join(lines))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_way_of_placing_is_sound_in_any_order(seed: int) -> None:
    found = ways(seed)
    expected = Machine(found[0], 1).serially()
    for number, plan in enumerate(found):
        check_plan(plan)
        assert plan.arena_bytes >= 0
        assert Machine(plan, 2).in_any_order(number) == expected
    assert live_bytes(found[0]) == max(bytes_in_use(found[0]), default=0) <= found[0].arena_bytes


@pytest.mark.parametrize("seed", range(40))
def test_what_may_not_share_is_apart_and_no_try_is_worse_than_the_first(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randrange(1, 12)
    lengths = {number: dice.choice((1, 2, 3, 8)) * 64 for number in range(count)}
    pairs = {(one, other) for one in range(count) for other in range(one) if dice.random() < 0.4}
    apart = {
        one: [other for other in range(count) if (one, other) in pairs or (other, one) in pairs] for one in range(count)
    }
    orders = [dice.sample(range(count), count) for _ in range(2)]
    offsets, total = fit(Buffers(lengths, apart), orders, 0)
    assert total == max(offsets[number] + lengths[number] for number in range(count))
    assert all(offset >= 0 for offset in offsets.values())
    for one, other in pairs:
        assert offsets[one] + lengths[one] <= offsets[other] or offsets[other] + lengths[other] <= offsets[one]
    for order in orders:
        assert total <= fit(Buffers(lengths, apart), [order], 1 << 40)[1]
    assert fit(Buffers(lengths, apart), orders, total)[1] == total
