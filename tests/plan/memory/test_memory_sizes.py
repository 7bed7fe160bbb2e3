"""How much memory random plans get, by every way of placing; and with waits for memory any order gives the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.plan.plan_runner import EAGER, Machine, random_plan

from weft.plan.check import check_plan
from weft.plan.form.plan import Plan, Wait
from weft.plan.memory.arena import bytes_in_use, live_bytes, place
from weft.plan.memory.fit import Buffers, fit
from weft.plan.memory.outputs import borrow_outputs
from weft.plan.memory.waits import early_order, with_waits
from weft.plan.schedule.lanes import Scheduling

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
