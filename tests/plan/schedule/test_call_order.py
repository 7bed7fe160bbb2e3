"""Another order of calls: less memory in use at once, and the same results."""

from tests.plan.memory.test_memory import NEGATE, chain
from tests.plan.plan_runner import Machine, random_plan

from weft.plan.form.plan import Buffer, KernelCall, Location, Plan
from weft.plan.memory.arena import live_bytes, place
from weft.plan.schedule.call_order import frugal_order


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
    assert live_bytes(frugal_order(plan)) == 2 * 256


def test_an_order_that_is_as_good_is_kept() -> None:
    plan = chain((1, 0), (2, 1), (3, 2))
    assert frugal_order(plan) == plan


def test_random_plans_compute_the_same_with_no_more_memory() -> None:
    changed = 0
    for seed in range(60):
        plan = random_plan(seed)
        found = frugal_order(plan)
        assert live_bytes(found) <= live_bytes(plan)
        assert Machine(place(found), 1).serially() == Machine(place(plan), 2).serially()
        changed += found.calls != plan.calls
    assert changed > 5
