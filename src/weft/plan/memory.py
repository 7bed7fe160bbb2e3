"""A plan with lanes -> the same plan with a place in the arena for each intermediate.

Two buffers share bytes only if the waits order them: every run that uses the one is surely done before the first run
that uses the other starts, however fast or slow the lanes are. So placing adds no dependency, and needs none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.plan.order import lanes_of, order_of
from weft.plan.plan import Plan

MANY_BUFFERS = 1000  # from here on, one way of placing is tried
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


def place(plan: Plan) -> Plan:
    """Give every arena buffer an offset; without lanes, for the calls one after another."""
    lives = lifetimes(plan, [number for number, _ in plan.of_kind("arena")])
    least = live_bytes(plan)
    first, second = _sequences(lives)
    best = _fit(lives, first)
    if best[1] > least and len(first) < MANY_BUFFERS:
        best = min(best, _fit(lives, second), key=lambda found: found[1])
    offsets, arena_bytes = best
    return replace(plan, offsets=tuple(offsets.tolist()), arena_bytes=arena_bytes)


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


def lifetimes(plan: Plan, buffers: Sequence[int]) -> Lifetimes:
    """Find from when until when each of some buffers, given by number, is used."""
    lanes = lanes_of(plan)
    order = order_of(lanes)
    places = order.of_calls(len(plan.calls))
    index_of = {number: index for index, number in enumerate(buffers)}
    sizes = np.array([aligned(plan.buffers[number].bytes) for number in buffers], np.int64)
    never = len(plan.calls) * len(lanes) + 1
    starts = np.full((len(buffers), len(lanes)), never, np.int64)
    ends = np.zeros((len(buffers), len(lanes)), np.int64)
    for call, runs in zip(plan.calls, places, strict=True):
        used = {index_of[argument.buffer] for argument in call.arguments if argument.buffer in index_of}
        for lane, position in runs if used else ():
            clock = order.clocks[lane][position]
            for index in used:
                np.minimum(starts[index], clock, out=starts[index])
                ends[index, lane] = max(ends[index, lane], position + 1)
    return Lifetimes(sizes, starts, ends)


def _sequences(lives: Lifetimes) -> tuple[Numbers, Numbers]:
    """Give the orders of placing to try: large buffers first, and buffers that live long first."""
    used = lives.used
    sizes, first = lives.sizes[used], lives.starts[used].sum(axis=1)
    spans = lives.ends[used].max(axis=1) - lives.starts[used].min(axis=1)
    return used[np.lexsort((first, -sizes))], used[np.lexsort((first, -sizes, -spans))]


def _fit(lives: Lifetimes, sequence: Numbers) -> tuple[Numbers, int]:
    """Put each buffer into the smallest gap that those it may not overlap leave, or behind them all."""
    offsets = np.zeros(len(lives.sizes), np.int64)
    starts, ends = lives.starts.T.copy(), lives.ends.T.copy()
    negative_starts = -starts
    placed: Numbers = np.empty(0, np.int64)  # sorted by offset
    total = 0
    for index in sequence:
        size = lives.sizes[index]
        apart = _all_before(ends, starts[:, index], placed)
        apart |= _all_before(negative_starts, -ends[:, index], placed)
        blocking = placed[~apart]
        lows = offsets[blocking]
        covered = np.maximum.accumulate(np.concatenate(([0], lows + lives.sizes[blocking])))
        gaps = lows - covered[:-1]
        fitting = np.flatnonzero(gaps >= size)
        offset = covered[fitting[gaps[fitting].argmin()]] if fitting.size else covered[-1]
        offsets[index] = offset
        total = max(total, int(offset + size))
        placed = np.insert(placed, int(np.searchsorted(offsets[placed], offset)), index)
    return offsets, total


def _all_before(ends: Numbers, starts: Numbers, placed: Numbers) -> NDArray[np.bool_]:
    """Tell which placed buffers are done with in all lanes when another one starts."""
    found: NDArray[np.bool_] = ends[0, placed] <= starts[0]
    for lane in range(1, len(ends)):
        found &= ends[lane, placed] <= starts[lane]
    return found
