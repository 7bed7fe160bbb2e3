"""Intermediates lie in outputs only as long as nobody has written these, and where that lowers the peak."""

import random

from tests.plan.memory.test_arena import NEGATE
from tests.plan.plan_runner import EAGER, Machine, random_plan

from weft.plan.check import check_plan
from weft.plan.form.plan import Buffer, KernelCall, Lane, Location, Plan, Run, Wait
from weft.plan.memory.arena import LEAST_BYTES, borrow_outputs, place
from weft.plan.schedule.lanes import schedule


def chain(*links: tuple[int, int], outputs: dict[int, int], lanes: tuple[Lane, ...] = ()) -> Plan:
    """Make a plan of calls (written buffer, read buffer); buffer 0 is an input, `outputs` say how many lengths long."""
    count, buffers = 1 + max(map(max, links)), [Buffer("input", 0, LEAST_BYTES)]
    for number in range(1, count):
        kind = "output" if number in outputs else "arena"
        index = sum(buffer.kind == kind for buffer in buffers)
        buffers.append(Buffer(kind, index, LEAST_BYTES * outputs.get(number, 1)))  # type: ignore[arg-type]
    calls = tuple(KernelCall(NEGATE, (Location(out),), (Location(source),)) for out, source in links)
    return Plan(tuple(buffers), calls, lanes=lanes)


def arena_bytes(plan: Plan) -> int:
    placed = place(borrow_outputs(plan))
    check_plan(placed)
    return placed.arena_bytes


def test_an_intermediate_lies_in_an_output_that_is_written_later() -> None:
    assert arena_bytes(chain((1, 0), (2, 1), (3, 2), outputs={3: 1})) == LEAST_BYTES


def test_a_larger_output_takes_several() -> None:
    assert arena_bytes(chain((1, 0), (2, 1), (3, 2), (4, 3), outputs={4: 2})) == LEAST_BYTES


def test_what_the_call_that_writes_an_output_reads_stays_apart_from_it() -> None:
    assert arena_bytes(chain((1, 0), (2, 1), outputs={2: 1})) == LEAST_BYTES


def test_an_output_that_is_written_first_takes_none() -> None:
    assert arena_bytes(chain((3, 0), (1, 0), (2, 1), (2, 0), outputs={3: 4})) == 2 * LEAST_BYTES


def test_an_output_that_is_too_small_takes_none() -> None:
    plan = chain((1, 0), (2, 1), (3, 2), outputs={3: 1})
    small = Plan((*plan.buffers[:3], Buffer("output", 0, LEAST_BYTES - 4)), plan.calls)
    assert borrow_outputs(small) == small


def test_lanes_that_do_not_wait_share_no_output() -> None:
    links = ((1, 0), (2, 0))
    apart: tuple[Lane, ...] = ((Run(0, 0, 1),), (Run(1, 0, 1),))
    waiting: tuple[Lane, ...] = ((Run(0, 0, 1),), (Wait(0, 1), Run(1, 0, 1)))
    assert arena_bytes(chain(*links, outputs={2: 1}, lanes=apart)) == LEAST_BYTES
    assert arena_bytes(chain(*links, outputs={2: 1}, lanes=waiting)) == 0


def test_random_plans_compute_the_same_in_any_order() -> None:
    borrowed = 0
    for seed in range(40):
        plan = schedule(random_plan(seed), random.Random(seed).choice([1, 2, 3]), EAGER)
        plain, saving = place(plan), place(borrow_outputs(plan, least=64))
        check_plan(saving)
        borrowed += saving.calls != plain.calls
        expected = Machine(plain, 1).serially()
        assert Machine(saving, 2).serially() == expected
        assert Machine(saving, 3).in_any_order(1) == expected
    assert borrowed > 5
