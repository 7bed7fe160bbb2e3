"""Where intermediates are put: bytes are shared only where the waits order their uses, and little is wasted."""

import pytest

from weft.errors import InternalError
from weft.plan.form.plan import Buffer, KernelCall, Lane, Location, Plan, Run, Wait
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression, plan_loop
from weft.plan.memory.arena import ALIGNMENT, live_bytes, place
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
