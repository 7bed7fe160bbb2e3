"""Keep the timetable of lanes while calls are given to them: what each does, when, and where it must wait.

Times are estimates. Waits are exact: a run waits for whatever touched its bytes before, unless its lane knows already
that it is done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from weft.plan.form.dependencies import Footprints, Touch, TouchHistory
from weft.plan.form.plan import Plan, Run, Wait
from weft.plan.schedule.cost import MachineModel, PlanCosts, work_before

LANES_PER_PERIOD = 4  # many lanes look at each other less often: each looks at all others

Share = tuple[int, int, int]  # a lane, and the tiles [begin, end) that it does
Tiles = tuple[int, int, int]  # a call, and tiles [begin, end) of it


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run depends on: for each lane, how many of its runs must be done, and the bytes it reads from them."""

    counts: tuple[int, ...]
    read: tuple[int, ...]


class CallCosts:
    """The seconds of each call of a plan, whole or shared out."""

    def __init__(self, footprints: Footprints, model: MachineModel) -> None:
        plan = footprints.plan
        costs = PlanCosts(plan, model)
        self.footprints = footprints
        self.model = model
        self.tiles = [call.kernel.tile_count for call in plan.calls]
        self.parts = [costs.cost(call, footprints.boxes_of(number)) for number, call in enumerate(plan.calls)]
        self._before = [work_before(call.kernel) for call in plan.calls]
        self.whole = [self.seconds(number, 0, tiles, 1) for number, tiles in enumerate(self.tiles)]

    def seconds(self, number: int, begin: int, end: int, lanes: int) -> float:
        """Estimate the seconds of tiles [begin, end) of a call on one lane, while so many lanes do the same."""
        cost, share = self.parts[number], self._share(number, begin, end)
        moving = cost.moving + cost.from_memory * max(1.0, lanes * self.model.memory / self.model.shared_memory)
        return max(cost.computing, moving) * share + (end - begin) * self.model.tile + self.model.call

    def _share(self, number: int, begin: int, end: int) -> float:
        before, count = self._before[number], self.tiles[number]
        if before is not None:
            return before[end] - before[begin]
        return (end - begin) / count if count else 0.0

    def cuts(self, number: int, shares: Sequence[float]) -> list[int]:
        """Give where a call's tiles are cut, first to last, so that lanes do about these parts of its work."""
        before, count = self._before[number], self.tiles[number]
        ends = accumulate(shares)
        if before is None:
            return [0, *(round(end * count) for end in ends)]
        return [0, *(_nearest(before, end) for end in ends)]


def _nearest(before: Sequence[float], part: float) -> int:
    place = bisect_left(before, part, 1, len(before) - 1)
    return place - (part - before[place - 1] < before[place] - part)


class Timetable:
    """The lanes while they are filled.

    With `ahead`, no lane gets further than about so many calls ahead of another one, even where it could: what the
    other one still has to do keeps memory in use.
    """

    def __init__(self, footprints: Footprints, costs: CallCosts, lane_count: int, ahead: int = 0) -> None:
        self.ahead = ahead
        self._period = max(1, lane_count // LANES_PER_PERIOD)
        self.footprints = footprints
        self.costs = costs
        self.model = costs.model
        self.lanes = range(lane_count)
        self.items: list[list[Run | Wait]] = [[] for _ in self.lanes]
        self.free = [0.0 if lane == 0 else self.model.lane for lane in self.lanes]
        self._started: list[list[float]] = [[] for _ in self.lanes]
        self._finished: list[list[float]] = [[] for _ in self.lanes]
        self._clocks: list[list[tuple[int, ...]]] = [[] for _ in self.lanes]
        self._known = [[0] * lane_count for _ in self.lanes]
        self.order: list[int] = []  # of the calls
        self._counts: list[tuple[int, ...]] = []  # of each lane's runs, after each call
        # As things stand: what a run needs changes only when somebody touches a buffer that it touches.
        self._needs: dict[Tiles, Needs] = {}
        self._askers: dict[int, list[Tiles]] = {}  # by buffer
        self._history: TouchHistory[tuple[int, int]] = TouchHistory(footprints)

    @property
    def end(self) -> float:
        """Estimate when the first lane, which ends the call, has seen all others end."""
        others = [self.free[lane] + self.model.wait for lane in self.lanes[1:] if self.items[lane]]
        return max([self.free[0], *others])

    def needs(self, call: int, begin: int, end: int) -> Needs:
        """Find what tiles [begin, end) of a call depend on."""
        key = (call, begin, end)
        found = self._needs.get(key)
        if found is None:
            touches = self.footprints.of(*key)
            found = self._needs[key] = self._find_needs(touches)
            for buffer in {touch.buffer for touch in touches}:
                self._askers.setdefault(buffer, []).append(key)
        if self.ahead and len(self._counts) >= self.ahead and len(self._counts) % self._period == 0:
            return Needs(tuple(map(max, found.counts, self._counts[-self.ahead])), found.read)
        return found

    def _find_needs(self, touches: tuple[Touch, ...]) -> Needs:
        counts, read = [0] * len(self.lanes), [0] * len(self.lanes)
        for (lane, position), handed in self._history.before(touches):
            if position >= counts[lane]:
                counts[lane] = position + 1
            if handed is not None:
                read[lane] += min(handed[0].bytes, handed[1].bytes)
        return Needs(tuple(counts), tuple(read))

    def start(self, lane: int, needs: Needs) -> float:
        """Estimate when a run could start on a lane, with what it reads from other lanes at hand."""
        time, known = self.free[lane], self._known[lane]
        for other, count in enumerate(needs.counts):
            if other != lane and count > known[other]:
                time = max(time + self.model.check, self._finished[other][count - 1] + self.model.wait)
            if other != lane and needs.read[other] <= self.model.l2_bytes:
                time += needs.read[other] / self.model.transfer
        return time

    def ready(self, call: int) -> float:
        """Estimate when what a call depends on is done."""
        needs = self.needs(call, 0, self.costs.tiles[call])
        counts = zip(self._finished, needs.counts, strict=True)
        return max((finished[count - 1] for finished, count in counts if count), default=0.0)

    def finish(self, call: int, shares: Sequence[Share]) -> float:
        """Estimate when a call would be done if it were shared out so."""
        return max(
            self.start(lane, self.needs(call, begin, end)) + self.costs.seconds(call, begin, end, len(shares))
            for lane, begin, end in shares
        )

    def put(self, call: int, shares: Sequence[Share]) -> None:
        """Share a call out."""
        needed = [self.needs(call, begin, end) for _, begin, end in shares]
        for (lane, begin, end), needs in zip(shares, needed, strict=True):
            start = self.start(lane, needs)
            self._wait(lane, needs)
            self.items[lane].append(Run(call, begin, end))
            self.free[lane] = start + self.costs.seconds(call, begin, end, len(shares))
            self._started[lane].append(start)
            self._finished[lane].append(self.free[lane])
            self._clocks[lane].append(tuple(self._known[lane]))
            self._known[lane][lane] += 1
            touches = self.footprints.of(call, begin, end)
            self._history.add((lane, len(self._finished[lane]) - 1), touches)
            for buffer in {touch.buffer for touch in touches}:
                for asker in self._askers.pop(buffer, ()):
                    self._needs.pop(asker, None)
        self.order.append(call)
        self._counts.append(tuple(map(len, self._finished)))

    def _wait(self, lane: int, needs: Needs) -> None:
        """Add the waits that a run needs; the one that tells most comes first, and may spare the others."""
        known = self._known[lane]
        missing = [other for other in self.lanes if other != lane and needs.counts[other] > known[other]]
        missing.sort(key=lambda other: (-self._finished[other][needs.counts[other] - 1], other))
        for other in missing:
            count = needs.counts[other]
            if count > known[other]:
                self.items[lane].append(Wait(other, count))
                for third, seen in enumerate(self._clocks[other][count - 1]):
                    known[third] = max(known[third], seen)
                known[other] = max(known[other], count)

    def plan(self) -> Plan:
        """Give the plan with lanes, and its calls in an order that all lanes follow, so that it can run serially too.

        Lanes without runs are left out, except the first, which belongs to the caller.
        """
        used = self._used
        lanes = {lane: place for place, lane in enumerate(used)}
        calls = {call: place for place, call in enumerate(self.order)}

        def renumbered(item: Run | Wait) -> Run | Wait:
            if isinstance(item, Wait):
                return Wait(lanes[item.lane], item.count)
            return Run(calls[item.call], item.begin, item.end)

        plan = self.footprints.plan
        return replace(
            plan,
            calls=tuple(plan.calls[call] for call in self.order),
            lanes=tuple(tuple(map(renumbered, self.items[lane])) for lane in used),
        )

    def spans(self) -> list[list[tuple[float, float]]]:
        """Estimate when each run of that plan's lanes starts and ends."""
        return [list(zip(self._started[lane], self._finished[lane], strict=True)) for lane in self._used]

    @property
    def _used(self) -> list[int]:
        return [lane for lane in self.lanes if self.items[lane] or lane == 0]
