"""Put intermediates of a plan with lanes into the memory of outputs that are not written yet.

An output is memory that a call has anyway, from its start. Until the first kernel touches it, what is done with by then
may lie there; as everywhere, the waits must order the uses, however fast or slow the lanes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import le

import numpy as np

from weft.plan.form.dependencies import Early
from weft.plan.form.plan import KernelCall, Location, Plan
from weft.plan.memory.arena import Lifetimes, aligned, bytes_in_use, lifetimes

LEAST_BYTES = 4096  # smaller intermediates are left where they are: they would save next to nothing
MOST_MOVED = 256


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
