"""Find which calls of a plan must be done before which, by the bytes they touch, and which runs of lanes surely are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from weft.errors import InternalError
from weft.plan.form.plan import Lane, Plan, Run, Wait
from weft.plan.kernels.kernel import Boxes, ByteBox, disjoint

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Touch:
    """What part of a call does to a buffer; without a box it may be anywhere in it. `bytes` are those it touches."""

    buffer: int
    box: ByteBox | None
    writes: bool
    bytes: int

    def meets(self, other: Touch) -> bool:
        """Tell whether two touches of one buffer may share a byte."""
        return self.box is None or other.box is None or not disjoint(self.box, other.box)


class Footprints:
    """What ranges of tiles of a plan's calls touch, of the buffers that some call writes; others order nothing.

    Those of a plan that has the calls of another one in another order are learned with that one's: they are the same.
    """

    def __init__(self, plan: Plan, like: Footprints | None = None) -> None:
        self.plan = plan
        written = like.written if like else (place.buffer for call in plan.calls for place in call.writes)
        self.written: frozenset[int] = frozenset(written)
        # By identity of the calls, which both plans keep.
        self._whole: dict[int, Boxes] = like._whole if like else {}
        self._known: dict[tuple[int, int, int], tuple[Touch, ...]] = like._known if like else {}
        # By identity of touches, which are kept as known. Lanes are filled several times, and ask for the same pairs.
        self._meet: dict[tuple[int, int], bool] = like._meet if like else {}

    def meet(self, one: Touch, other: Touch) -> bool:
        """Tell whether two touches of one buffer, which were given here, may share a byte."""
        key = (id(one), id(other))
        found = self._meet.get(key)
        if found is None:
            found = self._meet[key] = one.meets(other)
        return found

    def boxes_of(self, number: int) -> Boxes:
        """Give a box for each argument of a call, from the argument's start; None where it may be touched anywhere."""
        kernel = self.plan.calls[number].kernel
        return self._boxes(number, 0, kernel.tile_count)

    def whole(self, number: int) -> tuple[Touch, ...]:
        """Give what all tiles of a call touch."""
        return self.of(number, 0, self.plan.calls[number].kernel.tile_count)

    def of(self, number: int, begin: int, end: int) -> tuple[Touch, ...]:
        """Give what tiles [begin, end) of a call touch."""
        key = (id(self.plan.calls[number]), begin, end)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(number, begin, end)
        return found

    def _find(self, number: int, begin: int, end: int) -> tuple[Touch, ...]:
        call = self.plan.calls[number]
        writes = len(call.writes)
        found = []
        for position, (place, one) in enumerate(zip(call.arguments, self._boxes(number, begin, end), strict=True)):
            if place.buffer in self.written:
                size = self.plan.buffers[place.buffer].bytes
                moved, count = (None, size) if one is None else (one.moved(place.offset), min(one.bytes, size))
                found.append(Touch(place.buffer, moved, position < writes, count))
        return tuple(found)

    def _boxes(self, number: int, begin: int, end: int) -> Boxes:
        call = self.plan.calls[number]
        tiles = call.kernel.tile_count
        if (begin, end) == (0, tiles) and id(call) in self._whole:
            return self._whole[id(call)]
        found = call.kernel.boxes(begin, end) if begin < end else (None,) * len(call.arguments)
        if (begin, end) == (0, tiles):
            self._whole[id(call)] = found
        return found


@dataclass(slots=True)
class _Touched(Generic[Key]):
    writes: list[tuple[Key, Touch]] = field(default_factory=list)
    reads: list[tuple[Key, Touch]] = field(default_factory=list)


class TouchHistory(Generic[Key]):
    """Who has touched which bytes so far, of what some footprints are of."""

    def __init__(self, footprints: Footprints) -> None:
        self._meet = footprints.meet
        self._buffers: dict[int, _Touched[Key]] = {}

    def before(self, touches: tuple[Touch, ...]) -> list[tuple[Key, tuple[Touch, Touch] | None]]:
        """List who must be done before something that touches these bytes; what it wrote and what of it is read now."""
        found: list[tuple[Key, tuple[Touch, Touch] | None]] = []
        for touch in touches:
            past = self._buffers.get(touch.buffer)
            if past is None:
                continue
            met = [(key, other) for key, other in past.writes if self._meet(touch, other)]
            found += [(key, None if touch.writes else (other, touch)) for key, other in met]
            if touch.writes:
                found += [(key, None) for key, other in past.reads if self._meet(touch, other)]
        return found

    def add(self, key: Key, touches: tuple[Touch, ...]) -> None:
        """Note that somebody touches these bytes."""
        for touch in touches:
            past = self._buffers.setdefault(touch.buffer, _Touched())
            (past.writes if touch.writes else past.reads).append((key, touch))


def predecessors(footprints: Footprints) -> list[list[int]]:
    """List, for each call, the calls that must be done before it, as far as bytes alone tell."""
    history: TouchHistory[int] = TouchHistory(footprints)
    found = []
    for number in range(len(footprints.plan.calls)):
        touches = footprints.whole(number)
        found.append(sorted({key for key, _ in history.before(touches)}))
        history.add(number, touches)
    return found


Clock = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """The runs of each lane in order, and the clock of each."""

    runs: tuple[tuple[Run, ...], ...]
    clocks: tuple[tuple[Clock, ...], ...]

    def of_calls(self, count: int) -> list[list[tuple[int, int]]]:
        """Give, for each of so many calls, where its runs are: lane and position."""
        places: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for lane, runs in enumerate(self.runs):
            for position, run in enumerate(runs):
                places[run.call].append((lane, position))
        return places

    def before(self, first: tuple[int, int], second: tuple[int, int]) -> bool:
        """Tell whether a run is surely done when another one starts; runs are given by lane and position."""
        lane, position = first
        return self.clocks[second[0]][second[1]][lane] > position


@dataclass(frozen=True, slots=True)
class Early:
    """An order that is sure, and one that waits could make sure of: of use to buffers of so many bytes or more."""

    sure: Order
    wanted: Order
    least_bytes: int


def lanes_of(plan: Plan) -> tuple[Lane, ...]:
    """Give the lanes of a plan; one that has none yet runs its calls one after another."""
    return plan.lanes or (tuple(Run(number, 0, call.kernel.tile_count) for number, call in enumerate(plan.calls)),)


def order_of(lanes: tuple[Lane, ...]) -> Order:
    """Follow all lanes to their ends; lanes that wait for each other in a circle are an InternalError."""
    walkers = [_Walker(number, lane, len(lanes)) for number, lane in enumerate(lanes)]
    moving = True
    while moving:
        moving = any(walker.advance(walkers) for walker in walkers)
    stuck = [walker for walker in walkers if walker.blocked_by is not None]
    if stuck:
        why = "; ".join(f"lane {walker.number} waits for {walker.blocked_by}" for walker in stuck)
        raise InternalError("the lanes of a plan wait for each other and never end", why=why)
    return Order(
        tuple(tuple(walker.runs) for walker in walkers),
        tuple(tuple(walker.clocks) for walker in walkers),
    )


class _Walker:
    """Follows one lane as far as the others allow."""

    def __init__(self, number: int, lane: Lane, lane_count: int) -> None:
        self.number = number
        self.items: Iterator[Run | Wait] = iter(lane)
        self.blocked_by: Wait | None = None
        self.clock = [0] * lane_count
        self.runs: list[Run] = []
        self.clocks: list[Clock] = []

    def advance(self, walkers: list[_Walker]) -> bool:
        """Go on to the next wait that cannot be over yet, or to the end; tells whether it got anywhere."""
        moved = False
        if self.blocked_by is not None:
            if not self._passes(self.blocked_by, walkers):
                return False
            self.blocked_by, moved = None, True
        for item in self.items:
            if isinstance(item, Run):
                self.runs.append(item)
                self.clocks.append(tuple(self.clock))
                self.clock[self.number] += 1
            elif not self._passes(item, walkers):
                self.blocked_by = item
                return True
            moved = True
        return moved

    def _passes(self, wait: Wait, walkers: list[_Walker]) -> bool:
        if wait.count == 0:
            return True
        if not 0 <= wait.lane < len(walkers):
            return False
        other = walkers[wait.lane]
        if len(other.runs) < wait.count:
            return False
        # The flag is set after the run: who sees it knows the run, and all that the run could rely on.
        for lane, count in enumerate(other.clocks[wait.count - 1]):
            self.clock[lane] = max(self.clock[lane], count)
        self.clock[wait.lane] = max(self.clock[wait.lane], wait.count)
        return True
