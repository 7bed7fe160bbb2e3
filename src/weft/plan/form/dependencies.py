"""The calls of a plan -> which must be done before which: those that touch the same bytes, if one of them writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from weft.plan.form.plan import Plan
from weft.plan.kernels.box import Box, disjoint
from weft.plan.kernels.kernel import Boxes

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Touch:
    """What part of a call does to a buffer; without a box it may be anywhere in it. `bytes` are those it touches."""

    buffer: int
    box: Box | None
    writes: bool
    bytes: int

    def meets(self, other: Touch) -> bool:
        """Tell whether two touches of one buffer may share a byte."""
        return self.box is None or other.box is None or not disjoint(self.box, other.box)


class Footprints:
    """What ranges of tiles of a plan's calls touch, of the buffers that some call writes; others order nothing."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.written = frozenset(place.buffer for call in plan.calls for place in call.writes)
        self._whole: dict[int, Boxes] = {}
        self._known: dict[tuple[int, int, int], tuple[Touch, ...]] = {}

    def boxes_of(self, number: int) -> Boxes:
        """Give a box for each argument of a call, from the argument's start; None where it may be touched anywhere."""
        kernel = self.plan.calls[number].kernel
        return self._boxes(number, 0, kernel.tile_count)

    def whole(self, number: int) -> tuple[Touch, ...]:
        """Give what all tiles of a call touch."""
        return self.of(number, 0, self.plan.calls[number].kernel.tile_count)

    def of(self, number: int, begin: int, end: int) -> tuple[Touch, ...]:
        """Give what tiles [begin, end) of a call touch."""
        key = (number, begin, end)
        if key not in self._known:
            self._known[key] = self._find(*key)
        return self._known[key]

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
        if (begin, end) == (0, tiles) and number in self._whole:
            return self._whole[number]
        found = call.kernel.boxes(begin, end) if begin < end else (None,) * len(call.arguments)
        if (begin, end) == (0, tiles):
            self._whole[number] = found
        return found


@dataclass(slots=True)
class _Touched(Generic[Key]):
    writes: list[tuple[Key, Touch]] = field(default_factory=list)
    reads: list[tuple[Key, Touch]] = field(default_factory=list)


class History(Generic[Key]):
    """Who has touched which bytes so far."""

    def __init__(self) -> None:
        self._buffers: dict[int, _Touched[Key]] = {}

    def before(self, touches: tuple[Touch, ...]) -> list[tuple[Key, tuple[Touch, Touch] | None]]:
        """List who must be done before something that touches these bytes; what it wrote and what of it is read now."""
        found: list[tuple[Key, tuple[Touch, Touch] | None]] = []
        for touch in touches:
            past = self._buffers.get(touch.buffer)
            if past is None:
                continue
            met = [(key, other) for key, other in past.writes if touch.meets(other)]
            found += [(key, None if touch.writes else (other, touch)) for key, other in met]
            if touch.writes:
                found += [(key, None) for key, other in past.reads if touch.meets(other)]
        return found

    def add(self, key: Key, touches: tuple[Touch, ...]) -> None:
        """Note that somebody touches these bytes."""
        for touch in touches:
            past = self._buffers.setdefault(touch.buffer, _Touched())
            (past.writes if touch.writes else past.reads).append((key, touch))


def predecessors(footprints: Footprints) -> list[list[int]]:
    """List, for each call, the calls that must be done before it, as far as bytes alone tell."""
    history: History[int] = History()
    found = []
    for number in range(len(footprints.plan.calls)):
        touches = footprints.whole(number)
        found.append(sorted({key for key, _ in history.before(touches)}))
        history.add(number, touches)
    return found
