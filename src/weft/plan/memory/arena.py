"""Give each intermediate of a plan with lanes a place in the arena.

Two buffers share bytes only if the waits order them: every run that uses the one is surely done before the first run
that uses the other starts, however fast or slow the lanes are. So placing adds no dependency, and needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.plan.form.dependencies import Early, lanes_of, order_of
from weft.plan.form.plan import Plan

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


# Where a try of placing reaches too high, the buffer at its top is placed earlier in the next one: what is placed early
# lies low.
MOST_TRIES = 64
MOST_LOOKS = 200_000  # at buffers that may not share bytes with the one to place, in all tries


@dataclass(frozen=True, slots=True)
class Buffers:
    """Sizes of buffers by number, and for each those that may not share bytes with it."""

    sizes: Mapping[int, int]
    apart: Mapping[int, Sequence[int]]


def fit(buffers: Buffers, sequences: Sequence[Sequence[int]], least: int) -> tuple[dict[int, int], int]:
    """Place buffers, trying some sequences first, and give their offsets and where they end; never below `least`."""
    tries = [_placed(buffers, sequence) for sequence in sequences]
    best, sequence = min(zip(tries, sequences, strict=True), key=lambda one: one[0][1])
    looks = sum(map(len, buffers.apart.values()))
    found = best
    for count in range(min(MOST_TRIES, MOST_LOOKS // max(looks, 1)) - len(tries)):
        if best[1] <= least:
            break
        sequence = _with_top_first(buffers, sequence, found, whole=count % 2 == 1)
        found = _placed(buffers, sequence)
        best = min(best, found, key=lambda one: one[1])
    return best


def _placed(buffers: Buffers, sequence: Sequence[int]) -> tuple[dict[int, int], int]:
    """Put each buffer into the smallest gap that those it may not overlap leave, or behind them all."""
    # The innermost loop of planning: without calls of functions it takes half as long.
    offsets: dict[int, int] = {}
    ends: dict[int, int] = {}
    total = 0
    for number in sequence:
        size = buffers.sizes[number]
        blocking = [(offsets[other], ends[other]) for other in buffers.apart[number] if other in offsets]
        blocking.sort()
        covered, place, smallest = 0, -1, -1
        for offset, end in blocking:
            gap = offset - covered
            if gap >= size and (place < 0 or gap < smallest):
                place, smallest = covered, gap
            if end > covered:  # noqa: PLR1730  # a call of max takes five times as long
                covered = end
        offsets[number] = start = covered if place < 0 else place
        ends[number] = end = start + size
        total = max(total, end)
    return offsets, total


def _with_top_first(
    buffers: Buffers, sequence: Sequence[int], found: tuple[dict[int, int], int], *, whole: bool
) -> list[int]:
    """A sequence with the buffer that reaches highest before all others, or just before those it may not overlap."""
    offsets, total = found
    top = next(number for number in sequence if offsets[number] + buffers.sizes[number] == total)
    again = [number for number in sequence if number != top]
    apart = set(buffers.apart[top])
    place = 0 if whole else next((at for at, number in enumerate(again) if number in apart), 0)
    return [*again[:place], top, *again[place:]]
