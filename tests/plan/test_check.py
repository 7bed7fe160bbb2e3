"""The checker of plans: what it finds when the planner is broken on purpose."""

from dataclasses import replace

import pytest
from tests.plan.memory.test_arena import chain
from tests.plan.plan_runner import EAGER, random_plan

from weft.errors import InternalError
from weft.plan.check import check_plan, overlap
from weft.plan.form.plan import Lane, Plan, Run, Wait
from weft.plan.kernels.kernel import ByteBox
from weft.plan.memory.arena import place
from weft.plan.schedule.lanes import schedule

CHAIN = ((1, 0), (2, 1), (3, 2))
IN_ORDER: Lane = (Run(0, 0, 1), Run(1, 0, 1), Run(2, 0, 1))
HANDED_OVER: tuple[Lane, ...] = ((Run(0, 0, 1), Wait(1, 1), Run(2, 0, 1)), (Wait(0, 1), Run(1, 0, 1)))


def problem(plan: Plan) -> str:
    with pytest.raises(InternalError) as caught:
        check_plan(plan)
    return str(caught.value)


def test_right_plans_pass() -> None:
    check_plan(place(chain(*CHAIN)))
    check_plan(place(chain(*CHAIN, lanes=(IN_ORDER,))))
    check_plan(place(chain(*CHAIN, lanes=HANDED_OVER)))


def test_a_missing_run_is_found() -> None:
    plan = replace(place(chain(*CHAIN)), lanes=(IN_ORDER[:2],))
    assert "call 2 has 1 tiles, of which 0 are run" in problem(plan)


def test_a_tile_that_runs_twice_is_found() -> None:
    plan = replace(place(chain(*CHAIN)), lanes=((*IN_ORDER, IN_ORDER[2]),))
    assert "call 2 runs tiles [0, 1) where tile 1 is next" in problem(plan)


def test_a_run_of_no_call_is_found() -> None:
    plan = replace(place(chain(*CHAIN)), lanes=((*IN_ORDER, Run(7, 0, 1)),))
    assert "call 7 is run, but there is no such call" in problem(plan)


def test_a_missing_wait_is_found() -> None:
    plan = replace(place(chain(*CHAIN)), lanes=(HANDED_OVER[0], HANDED_OVER[1][1:]))
    assert "calls 0 and 1 touch the same bytes of buffer 1, but nothing orders them" in problem(plan)


def test_calls_in_the_wrong_order_are_found() -> None:
    plan = replace(place(chain(*CHAIN)), lanes=(IN_ORDER[::-1],))
    assert "nothing orders them" in problem(plan)


def test_lanes_that_wait_for_each_other_are_found() -> None:
    lanes: tuple[Lane, ...] = ((Wait(1, 1), *IN_ORDER[:2]), (Wait(0, 1), IN_ORDER[2]))
    assert "wait for each other" in problem(replace(place(chain(*CHAIN)), lanes=lanes))


def test_a_wait_for_more_runs_than_there_are_is_found() -> None:
    assert "never end" in problem(replace(place(chain(*CHAIN)), lanes=((Wait(1, 2), *IN_ORDER), ())))


def test_intermediates_that_share_bytes_while_both_are_in_use_are_found() -> None:
    plan = place(chain(*CHAIN))
    shared = replace(plan, offsets=(0, 0, 256, 0))
    assert "buffers 0 and 1 share bytes of the arena" in problem(shared)


def test_memory_that_was_placed_for_other_lanes_is_found() -> None:
    plan = place(chain((1, 0), (3, 2)))
    apart: tuple[Lane, ...] = ((Run(0, 0, 1),), (Run(1, 0, 1),))
    assert "share bytes of the arena" in problem(replace(plan, lanes=apart))


def test_memory_that_the_calls_in_order_cannot_share_is_found() -> None:
    lanes = ((Run(1, 0, 1), Run(0, 0, 1)),)
    plan = place(chain((1, 0), (3, 2), lanes=lanes))
    swapped = replace(plan, calls=plan.calls[::-1], lanes=((Run(0, 0, 1), Run(1, 0, 1)),))
    check_plan(swapped)
    interleaved = place(chain((1, 0), (3, 2), (1, 0), lanes=((Run(1, 0, 1), Run(0, 0, 1), Run(2, 0, 1)),)))
    assert "share bytes of the arena" in problem(interleaved)


def test_an_intermediate_outside_the_arena_is_found() -> None:
    plan = place(chain(*CHAIN))
    assert "outside the arena" in problem(replace(plan, arena_bytes=plan.arena_bytes - 64))


def test_a_crooked_offset_is_found() -> None:
    plan = place(chain((1, 0)))
    assert "does not begin at a cache line" in problem(replace(plan, offsets=(0, 260), arena_bytes=600))


def test_missing_offsets_are_found() -> None:
    assert "but 0 offsets" in problem(chain(*CHAIN))


def test_a_call_beyond_the_end_of_its_buffer_is_found() -> None:
    plan = place(chain((1, 0)))
    small = replace(plan, buffers=(replace(plan.buffers[0], bytes=128), plan.buffers[1]))
    assert "call 0 touches bytes up to 256 of buffer 0, beyond its end" in problem(small)


def test_every_wait_of_a_schedule_is_needed() -> None:
    plan = place(schedule(random_plan(7), 2, EAGER))
    waits = [
        (lane, spot) for lane, items in enumerate(plan.lanes) for spot, item in enumerate(items) if type(item) is Wait
    ]
    assert waits
    for lane, spot in waits:
        lanes = list(plan.lanes)
        lanes[lane] = (*lanes[lane][:spot], *lanes[lane][spot + 1 :])
        problem(replace(plan, lanes=tuple(lanes)))


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (ByteBox(0, 8, (), 8), ByteBox(8, 16, (), 8), False),
        (ByteBox(0, 9, (), 9), ByteBox(8, 16, (), 8), True),
        (ByteBox(0, 100, ((32, 4),), 4), ByteBox(4, 104, ((32, 4),), 4), False),
        (ByteBox(0, 100, ((32, 4),), 5), ByteBox(4, 104, ((32, 4),), 4), True),
        (ByteBox(0, 100, ((32, 4),), 4), ByteBox(50, 60, (), 10), False),
        (ByteBox(0, 100, ((32, 4),), 4), ByteBox(50, 70, (), 20), True),
        (ByteBox(0, 100, ((32, 4),), 4), None, True),
    ],
)
def test_overlap_looks_at_every_item(one: ByteBox, other: ByteBox | None, wanted: bool) -> None:
    assert overlap(one, other) is wanted
    assert overlap(other, one) is wanted
