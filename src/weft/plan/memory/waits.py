"""Add waits to a plan with lanes, which are over when they come, so that intermediates may share bytes.

By the times that lanes are planned with, much is done before a run starts that nothing makes sure of. If memory is to
be shared, the run waits for it: mostly that costs one look at a word. Only what shares bytes in the end waits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np

from weft.plan.form.dependencies import Early, Order, lanes_of, order_of
from weft.plan.form.plan import Lane, Location, Plan, Run, Wait
from weft.plan.memory.arena import aligned, lifetimes, live_bytes

LEAST_PART = 1 / 12

Spans = Sequence[Sequence[tuple[float, float]]]  # of each lane's runs: when each starts and ends
Range = tuple[int, int, int]  # the output that a buffer lies in, or -1 for the arena, its first byte, its end


def early_order(plan: Plan, spans: Spans, slack: float, part: float = LEAST_PART) -> Early:
    """Give what is done when a run starts, by the times it is planned for; `slack` are seconds that it may wait.

    Only calls before the run's own count, so that waits for them are never in a circle, nor if calls run in order. What
    is smaller than that part of all memory in use at once saves too little to wait for it.
    """
    order = order_of(lanes_of(plan))
    ends = [[end for _, end in lane] for lane in spans]
    calls = [[run.call for run in runs] for runs in order.runs]
    clocks = []
    for lane, runs in enumerate(order.runs):
        found = []
        for position, run in enumerate(runs):
            latest = spans[lane][position][0] + slack
            clock = list(order.clocks[lane][position])
            for other in range(len(clock)):
                if other != lane:
                    earlier = min(bisect_right(ends[other], latest), bisect_right(calls[other], run.call - 1))
                    clock[other] = max(clock[other], earlier)
            found.append(tuple(clock))
        clocks.append(tuple(found))
    return Early(order, Order(order.runs, tuple(clocks)), int(live_bytes(plan) * part))


def with_waits(plan: Plan, placed: Plan) -> Plan:
    """Add the waits that sharing needs to a plan's placed form, which has its calls and lanes."""
    order = order_of(lanes_of(plan))
    ranges = _ranges(plan, placed)
    numbers = sorted(ranges)
    lives = lifetimes(plan, numbers)
    index_of = {number: index for index, number in enumerate(numbers)}
    runs_of = _runs_of(plan, order)
    needed: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * len(order.runs))
    for first, second in _sharing(ranges, runs_of):
        ends = lives.ends[index_of[first]]
        for _, lane, position in runs_of[second]:
            if (ends > np.array(order.clocks[lane][position])).any():
                counts = needed[lane, position]
                counts[:] = map(max, counts, ends.tolist())
    return replace(placed, lanes=_rebuilt(plan, order, needed)) if needed else placed


def _ranges(plan: Plan, placed: Plan) -> dict[int, Range]:
    """Say where each buffer lies that may share bytes: intermediates, and the outputs that some of them lie in."""
    ranges: dict[int, Range] = {}
    for before, after in zip(plan.calls, placed.calls, strict=True):
        for old, new in zip(before.arguments, after.arguments, strict=True):
            buffer = plan.buffers[old.buffer]
            if buffer.kind == "arena":
                ranges[old.buffer] = _range(placed, old, new, buffer.bytes)
    for host in {space for space, _, _ in ranges.values() if space >= 0}:
        ranges[host] = (host, 0, aligned(plan.buffers[host].bytes))
    return ranges


def _range(placed: Plan, old: Location, new: Location, size: int) -> Range:
    if new.buffer != old.buffer:
        return new.buffer, new.offset - old.offset, new.offset - old.offset + aligned(size)
    offset = placed.offsets[placed.buffers[old.buffer].index]
    return -1, offset, offset + aligned(size)


def _runs_of(plan: Plan, order: Order) -> dict[int, list[tuple[int, int, int]]]:
    """List the runs that use each buffer: call, lane and position, in the order of the calls."""
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, places in enumerate(order.of_calls(len(plan.calls))):
        for buffer in {place.buffer for place in plan.calls[number].arguments}:
            found[buffer] += [(number, lane, position) for lane, position in places]
    return found


def _sharing(ranges: dict[int, Range], runs_of: dict[int, list[tuple[int, int, int]]]) -> Iterator[tuple[int, int]]:
    """Give the pairs of buffers that follow each other on some bytes, the one that is used first before the other.

    That is enough: who waits for the last user of a byte waits for those whom that one has waited for.
    """
    spaces: dict[int, list[int]] = defaultdict(list)
    for number, (space, low, high) in ranges.items():
        if low < high and runs_of[number]:
            spaces[space].append(number)
    for numbers in spaces.values():
        latest: list[tuple[int, int, int]] = []  # of disjoint bytes, in order: first, end, who used them last
        for number in sorted(numbers, key=lambda number: runs_of[number][0][0]):
            _, low, high = ranges[number]
            start, stop = bisect_right(latest, low, key=_end), bisect_left(latest, high, key=_begin)
            before = latest[start:stop]
            yield from ((other, number) for other in dict.fromkeys(other for _, _, other in before))
            left = [(begin, low, other) for begin, _, other in before[:1] if begin < low]
            right = [(high, end, other) for _, end, other in before[-1:] if end > high]
            latest[start:stop] = [*left, (low, high, number), *right]


_begin, _end = itemgetter(0), itemgetter(1)


def _rebuilt(plan: Plan, order: Order, needed: dict[tuple[int, int], list[int]]) -> tuple[Lane, ...]:
    """Write the lanes again with all waits, each only where its lane does not know already."""
    lanes = lanes_of(plan)
    for lane, items in enumerate(lanes):
        position = 0
        for item in items:
            if isinstance(item, Wait):
                counts = needed[lane, position]
                counts[item.lane] = max(counts[item.lane], item.count)
            else:
                position += 1
    known = [[0] * len(lanes) for _ in lanes]
    clocks: list[list[list[int]]] = [[] for _ in lanes]
    again: list[list[Run | Wait]] = [[] for _ in lanes]
    for lane, position in (place for places in order.of_calls(len(plan.calls)) for place in places):
        counts, mine = needed[lane, position], known[lane]
        missing = [other for other, count in enumerate(counts) if other != lane and count > mine[other]]
        # The latest call first: whoever has waited for it may know of the others.
        missing.sort(key=lambda other: -order.runs[other][counts[other] - 1].call)
        for other in missing:
            if counts[other] > mine[other]:
                again[lane].append(Wait(other, counts[other]))
                mine[:] = map(max, mine, clocks[other][counts[other] - 1])
                mine[other] = max(mine[other], counts[other])
        again[lane].append(order.runs[lane][position])
        clocks[lane].append(list(mine))
        mine[lane] += 1
    return tuple(map(tuple, again))
