"""Give each intermediate of a plan with lanes a place: in the arena, or in outputs that are not written yet.

Two buffers share bytes only if the waits order them: every run that uses the one is surely done before the first run
that uses the other starts, however fast or slow the lanes are. So placing adds no dependency, and needs none.

An output is memory that a call has anyway, from its start. Until the first kernel touches it, what is done with by then
may lie there; as everywhere, the waits must order the uses, however fast or slow the lanes are.

By the times that lanes are planned with, much is done before a run starts that nothing makes sure of. If memory is to
be shared, the run waits for it: mostly that costs one look at a word. Only what shares bytes in the end waits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter, le

import numpy as np
from numpy.typing import NDArray

from weft.plan.form.dependencies import Early, Order, lanes_of, order_of
from weft.plan.form.plan import KernelCall, Lane, Location, Plan, Run, Wait

LEAST_BYTES = 4096  # smaller intermediates are left where they are: they would save next to nothing
MOST_MOVED = 256
LEAST_SAVED = 64 * 1024  # bytes above what is in use at once that are worth trying for: it takes as long as fusing


def borrow_outputs(plan: Plan, early: Early | None = None, *, least: int = LEAST_BYTES) -> Plan:
    """Move intermediates that are in use when most memory is, as long as an output has room for one of them.

    `early` is as for weft.plan.memory.arena.place.
    """
    tight = {*plan.tight}  # which may be smaller in a call
    outputs = [number for number, buffer in plan.of_kind("output") if buffer.bytes >= least and number not in tight]
    if not outputs or not any(buffer.bytes >= least for _, buffer in plan.of_kind("arena")):
        return plan
    hosts = _Hosts(plan, outputs, early)
    in_use = np.array(bytes_in_use(plan), np.int64)
    spans = _spans(plan, least)
    moved: dict[int, Location] = {}
    while len(moved) < MOST_MOVED and in_use.size:
        fullest = int(in_use.argmax())
        found = next(((n, place) for n in _candidates(plan, spans, fullest) if (place := hosts.take(n))), None)
        if found is None:
            break
        number, moved[number] = found
        first, last = spans.pop(number)
        in_use[first : last + 1] -= aligned(plan.buffers[number].bytes)
    return replace(plan, calls=tuple(_moved(call, moved) for call in plan.calls)) if moved else plan


def _spans(plan: Plan, least: int) -> dict[int, tuple[int, int]]:
    """For each intermediate that is large enough: the first and the last call that touches it."""
    large = {number for number, buffer in plan.of_kind("arena") if buffer.bytes >= least}
    spans: dict[int, tuple[int, int]] = {}
    for position, call in enumerate(plan.calls):
        for place in call.arguments:
            if place.buffer in large:
                spans[place.buffer] = (spans.get(place.buffer, (position, 0))[0], position)
    return spans


def _candidates(plan: Plan, spans: dict[int, tuple[int, int]], position: int) -> list[int]:
    """The intermediates in use at a call, the largest first."""
    living = [number for number, (first, last) in spans.items() if first <= position <= last]
    return sorted(living, key=lambda number: (-plan.buffers[number].bytes, number))


@dataclass(frozen=True, slots=True, eq=False)
class _Lives:
    """Lifetimes as lists: arrays of a number for each lane take longer to compare."""

    sizes: list[int]
    starts: list[list[int]]
    ends: list[list[int]]

    @staticmethod
    def of(lives: Lifetimes) -> _Lives:
        """Read arrays."""
        return _Lives(lives.sizes.tolist(), lives.starts.tolist(), lives.ends.tolist())

    def apart(self, one: int, other: int) -> bool:
        """Tell whether one of two buffers is surely done with before the other one starts."""
        first = all(map(le, self.ends[one], self.starts[other]))
        return first or all(map(le, self.ends[other], self.starts[one]))


class _Hosts:
    """Outputs, and the intermediates that lie in them so far."""

    def __init__(self, plan: Plan, outputs: Sequence[int], early: Early | None) -> None:
        guests = [number for number, _ in plan.of_kind("arena")]
        self._outputs = outputs
        self._sizes = [plan.buffers[number].bytes for number in outputs]
        self._own = _Lives.of(lifetimes(plan, outputs, early))
        self._lives = _Lives.of(lifetimes(plan, guests, early))
        self._index_of = {number: index for index, number in enumerate(guests)}
        self._placed: list[list[tuple[int, int]]] = [[] for _ in outputs]  # offset and index of each guest
        used = [place for place in range(len(outputs)) if any(self._own.ends[place])]
        # Those that are written first have least room to give: what fits there leaves the others for the rest.
        self._order = sorted(used, key=lambda place: (sum(self._own.starts[place]), place))

    def take(self, number: int) -> Location | None:
        """Find a place for an intermediate and keep it; None where no output has one."""
        index = self._index_of[number]
        size, ends = self._lives.sizes[index], self._lives.ends[index]
        for host in self._order:
            if not all(map(le, ends, self._own.starts[host])):
                continue
            offset = self._gap(host, index)
            if offset + size <= self._sizes[host]:
                self._placed[host].append((offset, index))
                self._placed[host].sort()
                return Location(self._outputs[host], offset)
        return None

    def _gap(self, host: int, index: int) -> int:
        """The first place in an output that none takes who may be there at the same time."""
        size, offset = self._lives.sizes[index], 0
        for start, other in self._placed[host]:
            if self._lives.apart(index, other):
                continue
            if start - offset >= size:
                break
            offset = max(offset, start + self._lives.sizes[other])
        return offset


def _moved(call: KernelCall, places: dict[int, Location]) -> KernelCall:
    if not any(place.buffer in places for place in call.arguments):
        return call

    def moved(place: Location) -> Location:
        host = places.get(place.buffer)
        return place if host is None else Location(host.buffer, host.offset + place.offset)

    return replace(call, writes=tuple(map(moved, call.writes)), reads=tuple(map(moved, call.reads)))


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

    With `early`, a run may rely on more than the lanes' waits make sure of: see weft.plan.memory.arena.
    """
    lives = lifetimes(plan, [number for number, _ in plan.of_kind("arena")], early)
    offsets = [0] * len(lives.sizes)
    arena_bytes = 0
    if lives.used.size:
        found, arena_bytes = fit(_buffers(lives), _sequences(lives), live_bytes(plan) + LEAST_SAVED)
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
    never = max(map(len, order.runs), default=0) + 1  # lanes may take several turns at a call
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
    """Place buffers, trying some sequences first, and give their offsets and where they end; `least` is good enough."""
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
