"""A plan with lanes -> the same plan with a place in the arena for each intermediate.

Two buffers share bytes only if the waits order them: every run that uses the one is surely done before the first run
that uses the other starts, however fast or slow the lanes are. So placing adds no dependency, and needs none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.plan.form.order import Early, lanes_of, order_of
from weft.plan.form.plan import Plan
from weft.plan.memory.fit import Buffers, fit

ALIGNMENT = 64  # a cache line, and the widest vector

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """For each of some buffers: its bytes; per lane, the runs surely done at its first use, and by its last.

    One buffer is done with before another one starts if its `ends` are at most the other's `starts`, in all lanes.
    """

    sizes: Numbers
    starts: Numbers
    ends: Numbers

    @property
    def used(self) -> Numbers:
        """Give the indices of the buffers that some run uses and that have bytes."""
        found: Numbers = np.flatnonzero(self.ends.any(axis=1) & (self.sizes > 0))
        return found


def place(plan: Plan, early: Early | None = None) -> Plan:
    """Give every arena buffer an offset; without lanes, for the calls one after another.

    With `early`, a run may rely on more than the lanes' waits make sure of: see weft.plan.memory.waits.
    """
    lives = lifetimes(plan, [number for number, _ in plan.of_kind("arena")], early)
    offsets = [0] * len(lives.sizes)
    arena_bytes = 0
    if lives.used.size:
        found, arena_bytes = fit(_buffers(lives), _sequences(lives), live_bytes(plan))
        for index, offset in found.items():
            offsets[index] = offset
    return replace(plan, offsets=tuple(offsets), arena_bytes=arena_bytes)


def live_bytes(plan: Plan) -> int:
    """Count the bytes of the buffers in use at once, at most, if calls ran in order: no arena of one lane is smaller.

    The difference to `arena_bytes` is what lanes and gaps cost.
    """
    return max(bytes_in_use(plan), default=0)


def bytes_in_use(plan: Plan) -> list[int]:
    """Count, call by call, the bytes of the arena's buffers that are in use if calls run in order."""
    spans: dict[int, tuple[int, int]] = {}
    for position, call in enumerate(plan.calls):
        for argument in call.arguments:
            spans[argument.buffer] = (spans.get(argument.buffer, (position, 0))[0], position)
    change = [0] * (len(plan.calls) + 1)
    for number, buffer in plan.of_kind("arena"):
        if number in spans:
            first, last = spans[number]
            change[first] += aligned(buffer.bytes)
            change[last + 1] -= aligned(buffer.bytes)
    found: list[int] = np.cumsum(change)[:-1].tolist()
    return found


def aligned(size: int) -> int:
    """Round a number of bytes up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def lifetimes(plan: Plan, buffers: Sequence[int], early: Early | None = None) -> Lifetimes:
    """Find from when until when each of some buffers, given by number, is used."""
    lanes = lanes_of(plan)
    order = early.sure if early else order_of(lanes)
    wanted, least = (early.wanted, early.least_bytes) if early else (order, 0)
    places = order.of_calls(len(plan.calls))
    index_of = {number: index for index, number in enumerate(buffers)}
    sizes = [aligned(plan.buffers[number].bytes) for number in buffers]
    never = len(plan.calls) * len(lanes) + 1
    starts, ends = [[never] * len(lanes) for _ in buffers], [[0] * len(lanes) for _ in buffers]
    for call, runs in zip(plan.calls, places, strict=True):
        used = {index_of[argument.buffer] for argument in call.arguments if argument.buffer in index_of}
        for lane, position in runs if used else ():
            sure, soon = order.clocks[lane][position], wanted.clocks[lane][position]
            for index in used:
                clock = soon if sizes[index] >= least else sure
                starts[index] = list(map(min, starts[index], clock))
                ends[index][lane] = max(ends[index][lane], position + 1)
    shape = len(buffers), len(lanes)
    found = (np.array(rows, np.int64).reshape(shape) for rows in (starts, ends))
    return Lifetimes(np.array(sizes, np.int64), *found)


def _buffers(lives: Lifetimes) -> Buffers:
    """Find which buffers may be in use at the same time."""
    used = lives.used
    starts, ends = lives.starts[used], lives.ends[used]
    before = np.ones((len(used), len(used)), np.bool_)
    for lane in range(starts.shape[1]):
        before &= ends[:, lane, None] <= starts[None, :, lane]
    together = ~(before | before.T)
    np.fill_diagonal(together, val=False)
    numbers = used.tolist()
    apart = {number: used[row].tolist() for number, row in zip(numbers, together, strict=True)}
    return Buffers(dict(zip(numbers, lives.sizes[used].tolist(), strict=True)), apart)


def _sequences(lives: Lifetimes) -> list[list[int]]:
    """Give the orders of placing to try first: large buffers first, and buffers that live long first."""
    used = lives.used
    sizes, first = lives.sizes[used], lives.starts[used].sum(axis=1)
    spans = lives.ends[used].max(axis=1) - lives.starts[used].min(axis=1)
    return [used[np.lexsort(keys)].tolist() for keys in ((first, -sizes), (first, -sizes, -spans))]
