"""Waits for memory: what shares bytes is ordered, what was over by the times of the plan is all that is waited for."""

import random

from tests.plan.memory.test_arena import chain
from tests.plan.plan_runner import EAGER, Machine, random_plan

from weft.plan.check import check_plan
from weft.plan.form.plan import Lane, Plan, Run, Wait
from weft.plan.memory.arena import borrow_outputs, early_order, place, with_waits
from weft.plan.schedule.lanes import Scheduling

APART: tuple[Lane, ...] = ((Run(0, 0, 1),), (Run(1, 0, 1),))
PAIR = chain((1, 0), (3, 2), lanes=APART)  # two calls that share nothing, on two lanes


def shared(plan: Plan, spans: list[list[tuple[float, float]]], slack: float = 0.0) -> Plan:
    early = early_order(plan, spans, slack)
    found = with_waits(plan, place(borrow_outputs(plan, early, least=64), early))
    check_plan(found)
    return found


def test_a_lane_waits_for_what_is_over_by_then_so_that_both_use_the_same_memory() -> None:
    plan = shared(PAIR, [[(0.0, 1.0)], [(2.0, 3.0)]])
    assert plan.arena_bytes == 2 * 256
    assert plan.lanes == ((Run(0, 0, 1),), (Wait(0, 1), Run(1, 0, 1)))


def test_a_lane_does_not_wait_for_what_goes_on() -> None:
    plan = shared(PAIR, [[(0.0, 2.5)], [(2.0, 3.0)]])
    assert plan.arena_bytes == 4 * 256
    assert plan.lanes == APART


def test_a_lane_may_wait_for_as_long_as_it_is_given() -> None:
    assert shared(PAIR, [[(0.0, 2.5)], [(2.0, 3.0)]], slack=0.5).arena_bytes == 2 * 256


def test_no_lane_waits_for_the_memory_of_what_is_small() -> None:
    early = early_order(PAIR, [[(0.0, 1.0)], [(2.0, 3.0)]], 0.0, part=0.6)  # of two of them in use at once
    assert with_waits(PAIR, place(PAIR, early)).lanes == APART


def test_no_lane_waits_for_a_call_that_comes_later() -> None:
    lanes: tuple[Lane, ...] = ((Run(1, 0, 1),), (Run(0, 0, 1),))
    plan = shared(chain((1, 0), (3, 2), lanes=lanes), [[(0.0, 1.0)], [(2.0, 3.0)]])
    assert plan.arena_bytes == 4 * 256


def test_a_lane_waits_once_for_all_that_it_must_know() -> None:
    lanes: tuple[Lane, ...] = ((Run(0, 0, 1), Run(1, 0, 1)), (Run(2, 0, 1),))
    plan = shared(chain((1, 0), (2, 1), (4, 3), lanes=lanes), [[(0.0, 1.0), (1.0, 2.0)], [(2.0, 3.0)]])
    assert plan.lanes[1] == (Wait(0, 2), Run(2, 0, 1))


def test_random_plans_compute_the_same_in_any_order_with_less_memory() -> None:
    smaller = waiting = 0
    for seed in range(60):
        dice = random.Random(seed)
        scheduled = Scheduling(random_plan(seed), dice.choice([2, 3]), EAGER).schedule()
        plain = place(borrow_outputs(scheduled.plan, least=64))
        plan = shared(
            scheduled.plan, [list(lane) for lane in scheduled.spans], dice.choice([0.0, 0.1]) * scheduled.seconds
        )
        assert plan.arena_bytes <= plain.arena_bytes
        smaller += plan.arena_bytes < plain.arena_bytes
        waiting += plan.lanes != scheduled.plan.lanes
        expected = Machine(plain, 1).serially()
        assert Machine(plan, 2).serially() == expected
        for order in range(2):
            assert Machine(plan, 3).in_any_order(order) == expected
    assert smaller > 5
    assert waiting >= smaller
