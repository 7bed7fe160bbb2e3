"""Each rule of the checker of plans, just kept and just broken; and plans broken anywhere at random are found."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.memory.test_arena import NEGATE, chain
from tests.plan.plan_runner import EAGER, Machine, random_plan

from weft.errors import InternalError
from weft.plan.check import MOST_SHOWN, check_plan, overlap
from weft.plan.form.plan import Buffer, KernelCall, Lane, Location, LoopEnd, Pitch, Plan, Run, Wait
from weft.plan.kernels.kernel import ByteBox, box, disjoint
from weft.plan.memory.arena import ALIGNMENT, place
from weft.plan.schedule.lanes import schedule

CHAIN = place(chain((1, 0), (2, 1), (3, 2)))
PAIR = place(chain((1, 0)))
IN_ORDER: Lane = (Run(0, 0, 1), Run(1, 0, 1), Run(2, 0, 1))
OUTSIDE = "buffer {} at {} with 256 bytes is outside the arena of 512"


def problems(plan: Plan) -> list[str]:
    try:
        check_plan(plan)
    except InternalError as error:
        return (error.why or "").split("\n")
    return []


def with_first_read(plan: Plan, location: Location) -> Plan:
    first, *rest = plan.calls
    return replace(plan, calls=(replace(first, reads=(location,)), *rest))


def with_bytes(plan: Plan, number: int, size: int) -> Plan:
    buffers = list(plan.buffers)
    buffers[number] = replace(buffers[number], bytes=size)
    return replace(plan, buffers=tuple(buffers))


INPUT = Plan((Buffer("input", 0, 256), Buffer("output", 0, 256)), (KernelCall(NEGATE, (Location(1),), (Location(0),)),))

SIZE = Buffer("input", 1, 4)
BOUND = LoopEnd(2, 0, 1, 64)
ASKED = replace(NEGATE, ends=(0,), bounds=((1, 0),))
DENSE = Plan(
    (*INPUT.buffers, SIZE),
    (KernelCall(ASKED, (Location(1),), (Location(0),), ends=(BOUND,), bounds=(BOUND,)),),
    tight=(0,),
    dense=(0,),
)


def with_call(plan: Plan, **changed: Any) -> Plan:
    return replace(plan, calls=(replace(plan.calls[0], **changed),))


# What is done to a plan -> all that is said of it.
BROKEN: dict[str, tuple[Plan, list[str]]] = {
    "nothing": (PAIR, []),
    "an offset below the arena": (
        replace(PAIR, offsets=(-ALIGNMENT, 256)),
        [OUTSIDE.format(0, -ALIGNMENT)],
    ),
    "an offset far below the arena": (replace(PAIR, offsets=(0, -512)), [OUTSIDE.format(1, -512)]),
    "an offset one line too high": (replace(PAIR, offsets=(0, 320)), [OUTSIDE.format(1, 320)]),
    "the same offset": (
        replace(PAIR, offsets=(0, 0)),
        ["buffers 0 and 1 share bytes of the arena and may be in use at the same time"],
    ),
    "offsets that overlap by one line": (
        replace(PAIR, offsets=(0, 192)),
        ["buffers 0 and 1 share bytes of the arena and may be in use at the same time"],
    ),
    "an arena one byte too small": (
        replace(PAIR, arena_bytes=511),
        [f"buffer {number} at 256 with 256 bytes is outside the arena of 511" for number in (PAIR.offsets.index(256),)],
    ),
    "an arena with room to spare": (replace(PAIR, arena_bytes=513), []),
    "crooked by a byte": (
        replace(PAIR, offsets=(0, 257), arena_bytes=600),
        ["buffer 1 at 257 does not begin at a cache line"],
    ),
    "an offset too few": (replace(PAIR, offsets=(0,)), ["there are 2 intermediates, but 1 offsets"]),
    "an offset too many": (replace(PAIR, offsets=(0, 256, 0)), ["there are 2 intermediates, but 3 offsets"]),
    "a read of all there is": (with_bytes(INPUT, 0, 256), []),
    "a read one byte beyond": (
        with_bytes(INPUT, 0, 255),
        ["call 0 touches bytes up to 256 of buffer 0, beyond its end"],
    ),
    "a write one byte beyond": (
        with_bytes(INPUT, 1, 255),
        ["call 0 touches bytes up to 256 of buffer 1, beyond its end"],
    ),
    "a read from below": (
        with_first_read(INPUT, Location(0, -4)),
        ["call 0 touches bytes up to 252 of buffer 0, beyond its end"],
    ),
    "a read from far below": (
        with_first_read(INPUT, Location(0, -1024)),
        ["call 0 touches bytes up to -768 of buffer 0, beyond its end"],
    ),
    "a read too late in": (
        with_first_read(INPUT, Location(0, 4)),
        ["call 0 touches bytes up to 260 of buffer 0, beyond its end"],
    ),
    "a read in the middle of more": (with_first_read(with_bytes(INPUT, 0, 400), Location(0, 144)), []),
    "an unused buffer outside": (
        replace(
            PAIR,
            buffers=(*PAIR.buffers, Buffer("arena", 2, 1 << 20)),
            offsets=(*PAIR.offsets, 0),
        ),
        [],
    ),
    "an unused buffer below": (
        replace(PAIR, buffers=(*PAIR.buffers, Buffer("arena", 2, 64)), offsets=(*PAIR.offsets, -64)),
        ["buffer 2 at -64 with 64 bytes is outside the arena of 512"],
    ),
    "a tile before the first": (
        replace(PAIR, lanes=((Run(0, -1, 1),),)),
        ["call 0 runs tiles [-1, 1) where tile 0 is next"],
    ),
    "no tiles": (
        replace(PAIR, lanes=((Run(0, 0, 0), Run(0, 0, 1)),)),
        ["call 0 runs tiles [0, 0) where tile 0 is next"],
    ),
    "a tile too many": (
        replace(PAIR, lanes=((Run(0, 0, 2),),)),
        ["call 0 has 1 tiles, of which 2 are run"],
    ),
    "a tile later": (
        replace(PAIR, lanes=((Run(0, 1, 2),),)),
        ["call 0 runs tiles [1, 2) where tile 0 is next", "call 0 has 1 tiles, of which 2 are run"],
    ),
    "all shares": (replace(PAIR, lanes=((Run(0, 0, 1, (1, 2)),), (Run(0, 0, 1, (0, 2)),))), []),
    "a share that nobody runs": (
        replace(PAIR, lanes=((Run(0, 0, 1, (0, 3)),), (Run(0, 0, 1, (2, 3)),))),
        ["call 0 runs the shares [(0, 3), (2, 3)] of tiles [0, 1)"],
    ),
    "a buffer without gaps": (DENSE, []),
    "a count that is not given": (
        with_call(DENSE, bounds=()),
        ["call 0 is not given the strides and counts that its kernel asks for"],
    ),
    "a stride that nobody asks for": (
        with_call(DENSE, pitches=(Pitch(1, (2,)),)),
        ["call 0 is not given the strides and counts that its kernel asks for"],
    ),
    "a count of what may have gaps": (
        replace(DENSE, dense=()),
        ["call 0 is given strides or counts of what is not dense"],
    ),
    "without gaps, but read beyond": (replace(DENSE, tight=()), ["a buffer is dense, but not tight"]),
    "a size in a result": (
        with_call(DENSE, bounds=(replace(BOUND, size=1),)),
        ["call 0 is given sizes that no input holds"],
    ),
    "an input without gaps that is written": (
        with_call(DENSE, writes=(Location(0),)),
        ["call 0 writes to an input that is dense"],
    ),
    "a check of what has no gaps": (
        replace(DENSE, checks=INPUT.calls),
        ["what runs before all calls touches a buffer that is dense"],
    ),
    "a call before the first": (
        replace(PAIR, lanes=((Run(0, 0, 1), Run(-1, 0, 1)),)),
        ["call -1 is run, but there is no such call"],
    ),
    "a call behind the last": (
        replace(PAIR, lanes=((Run(0, 0, 1), Run(1, 0, 1)),)),
        ["call 1 is run, but there is no such call"],
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_all_that_is_wrong_with_a_plan_is_said_and_nothing_else(what: str) -> None:
    plan, said = BROKEN[what]
    assert problems(plan) == said


@pytest.mark.parametrize("count", [1, 2, MOST_SHOWN - 1, MOST_SHOWN, MOST_SHOWN + 1, 3 * MOST_SHOWN])
def test_the_first_problems_are_shown_and_the_others_counted(count: int) -> None:
    plan = replace(PAIR, lanes=((Run(0, 0, 1), *(Run(number, 0, 1) for number in range(1, count + 1))),))
    said = [f"call {number} is run, but there is no such call" for number in range(1, count + 1)]
    rest = [f"and {count - MOST_SHOWN} more"] if count > MOST_SHOWN else []
    assert problems(plan) == [*said[:MOST_SHOWN], *rest]
    with pytest.raises(InternalError, match=f"a plan has {count} problem"):
        check_plan(plan)


def test_a_read_and_a_read_need_no_order_but_a_write_and_either_do() -> None:
    buffers = (Buffer("input", 0, 256), *(Buffer("output", number, 256) for number in range(3)))
    apart: tuple[Lane, ...] = ((Run(0, 0, 1),), (Run(1, 0, 1),))

    def plan(*calls: tuple[int, int]) -> Plan:
        made = tuple(KernelCall(NEGATE, (Location(out),), (Location(source),)) for out, source in calls)
        return Plan(buffers, made, lanes=apart)

    unordered = "calls 0 and 1 touch the same bytes of buffer {}, but nothing orders them"
    assert problems(plan((1, 0), (2, 0))) == []
    assert problems(plan((1, 0), (1, 0))) == [unordered.format(1)]
    assert problems(plan((1, 0), (2, 1))) == [unordered.format(1)]
    assert problems(plan((2, 1), (1, 0))) == [unordered.format(1)]
    assert problems(replace(plan((1, 0), (2, 1)), lanes=(apart[0], (Wait(0, 1), *apart[1])))) == []
    # The other way round the waits order the calls, but not as they are to be.
    assert problems(replace(plan((1, 0), (2, 1)), lanes=((Wait(1, 1), *apart[0]), apart[1]))) == [unordered.format(1)]


def test_tiles_of_one_call_on_several_lanes_need_no_order() -> None:
    for seed in range(20):
        plan = place(schedule(random_plan(seed), 3, EAGER))
        assert problems(plan) == []


def later_offset(dice: random.Random, plan: Plan) -> Plan:
    offsets = list(plan.offsets)
    offsets[dice.randrange(len(offsets))] = ALIGNMENT * dice.randrange(-1, plan.arena_bytes // ALIGNMENT + 1)
    return replace(plan, offsets=tuple(offsets))


def without_item(dice: random.Random, plan: Plan) -> Plan:
    lanes = list(plan.lanes)
    number = dice.choice([number for number, lane in enumerate(lanes) if lane])
    spot = dice.randrange(len(lanes[number]))
    lanes[number] = (*lanes[number][:spot], *lanes[number][spot + 1 :])
    return replace(plan, lanes=tuple(lanes))


def earlier_wait(dice: random.Random, plan: Plan) -> Plan:
    lanes = list(plan.lanes)
    waits = [(lane, spot) for lane, items in enumerate(lanes) for spot, item in enumerate(items) if type(item) is Wait]
    if waits:
        lane, spot = dice.choice(waits)
        item = lanes[lane][spot]
        lanes[lane] = (*lanes[lane][:spot], replace(item, count=item.count - 1), *lanes[lane][spot + 1 :])
    return replace(plan, lanes=tuple(lanes))


def swapped_items(dice: random.Random, plan: Plan) -> Plan:
    lanes = list(plan.lanes)
    number = dice.choice([number for number, lane in enumerate(lanes) if lane])
    items = list(lanes[number])
    one, other = dice.randrange(len(items)), dice.randrange(len(items))
    items[one], items[other] = items[other], items[one]
    lanes[number] = tuple(items)
    return replace(plan, lanes=tuple(lanes))


BREAKAGES: tuple[Callable[[random.Random, Plan], Plan], ...] = (
    later_offset,
    without_item,
    earlier_wait,
    swapped_items,
)


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_plan_that_still_passes_computes_the_same_in_any_order(
    breakage: Callable[[random.Random, Plan], Plan],
) -> None:
    passed = refused = 0
    for seed in range(40):
        dice = random.Random(seed)
        plan = place(schedule(random_plan(seed), 2, EAGER))
        if not plan.offsets:
            continue
        broken = breakage(dice, plan)
        if problems(broken):
            refused += 1
            continue
        passed += 1
        expected = Machine(plan, 1).serially()
        for order in range(3):
            assert Machine(broken, 2).in_any_order(order) == expected
    assert refused > 5
    assert passed + refused > 20


BOXES = st.builds(
    box, st.integers(0, 40), st.lists(st.tuples(st.integers(-9, 24), st.integers(1, 4)), max_size=3), st.just(1)
)


def bytes_of(found: ByteBox) -> set[int]:
    starts = np.array([found.low])
    for stride, count in found.steps:
        starts = (starts[:, None] + stride * np.arange(count)).ravel()
    return {int(start) + byte for start in starts for byte in range(found.item)}


@given(one=BOXES, other=BOXES)
def test_boxes_overlap_where_they_share_a_byte(one: ByteBox, other: ByteBox) -> None:
    shared = bool(bytes_of(one) & bytes_of(other))
    assert overlap(one, other) is shared
    assert not (disjoint(one, other) and shared)


@given(
    low=st.integers(0, 40),
    steps=st.lists(st.tuples(st.integers(-9, 24), st.integers(0, 4)), max_size=3),
    item=st.integers(1, 4),
)
def test_a_box_has_the_bytes_of_its_items(low: int, steps: list[tuple[int, int]], item: int) -> None:
    expected = {0}
    for stride, count in steps:
        expected = {start + stride * number for start in expected for number in range(count)}
    found = box(low, steps, item)
    wanted = {(low + start) * item + byte for start in expected for byte in range(item)}
    assert (bytes_of(found) if found else set()) == wanted
    if found:
        assert (found.low, found.high) == (min(wanted), max(wanted) + 1)
        assert bytes_of(found.moved(7)) == {byte + 7 for byte in wanted}
        assert all(stride > 0 and count > 1 for stride, count in found.steps)
        assert list(found.steps) == sorted(found.steps, reverse=True)
