"""List-schedule the tiles of a plan onto lanes, in a timetable of what each does when, so that it is done soonest.

One list scheduler for all: of the calls that could start, the one that most depends on goes first, to the lane where
it is done first, or shared out over several. Whether other calls could keep the lanes busy instead decides which: so a
large product is split, and small towers go one to a lane. A plan that gains too little stays on one lane.

Times are estimates. Waits are exact: a run waits for whatever touched its bytes before, unless its lane knows already
that it is done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from math import inf

from weft.plan.form.dependencies import Footprints, Touch, TouchHistory, lanes_of, predecessors
from weft.plan.form.plan import Plan, Run, Wait
from weft.plan.memory.arena import live_bytes
from weft.plan.schedule.cost import MachineModel, PlanCosts, work_before
from weft.plan.schedule.shares import is_shared

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
        self.shared = list(map(is_shared, plan.calls))
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
        # Shares may be any tiles, and touch all that a call does; what lanes hand over is as at the largest sizes.
        self._handed = TouchHistory[tuple[int, int]](footprints) if any(costs.shared) else self._history

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
        before = self._history.before(touches)
        for (lane, position), _ in before:
            if position >= counts[lane]:
                counts[lane] = position + 1
        for (lane, _), handed in before if self._handed is self._history else self._handed.before(touches):
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
        tiles, found_later = self.costs.tiles[call], self.costs.shared[call] and len(shares) > 1
        if found_later:
            counts = self.needs(call, 0, tiles).counts
            needed = [replace(needs, counts=counts) for needs in needed]
        for number, ((lane, begin, end), needs) in enumerate(zip(shares, needed, strict=True)):
            start = self.start(lane, needs)
            self._wait(lane, needs)
            run = Run(call, 0, tiles, (number, len(shares))) if found_later else Run(call, begin, end)
            self.items[lane].append(run)
            self.free[lane] = start + self.costs.seconds(call, begin, end, len(shares))
            self._started[lane].append(start)
            self._finished[lane].append(self.free[lane])
            self._clocks[lane].append(tuple(self._known[lane]))
            self._known[lane][lane] += 1
            place, touches = (lane, len(self._finished[lane]) - 1), self.footprints.of(call, run.begin, run.end)
            self._history.add(place, touches)
            if self._handed is not self._history:
                self._handed.add(place, self.footprints.of(call, begin, end))
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
            return replace(item, call=calls[item.call])

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


LEAST_GAIN = 0.1  # of the time on one lane; estimates are not better than that
# A plan that takes so many seconds on one lane, and would gain enough by others if these waited for each other so many
# times less, has lanes all the same: the clock tries both.
WORTH_TRYING, HOPE = 20e-6, 4
SPLIT_GAIN = 0.05  # of a call's time
# Where intermediates are together larger than FRUGAL_BYTES, calls are not taken out of their order by more than this
# for each lane: what waits for them stays in memory.
WINDOW = 24
# A call is not shared out if there is this part of its work for each other lane: begun already, or able to start. Less
# than SOME is no work but the rounding of sums of times.
ENOUGH_ELSEWHERE, SOME_ELSEWHERE = 0.9, 0.05
# Where intermediates are together larger than this, no lane gets far ahead of another one.
FRUGAL_BYTES = 16 * 1024 * 1024
MOST_AHEAD = 2
MOST_WORK = 2200  # calls times lanes, after which no further way is tried
# Where a lane would wait for the most urgent call so many times longer than a wait costs, it first does another one
# that fits before it; so many of the calls that could start are looked at.
LEAST_IDLE, MOST_LOOKED_AT = 8, 6


@dataclass(frozen=True, slots=True)
class Way:
    """A way to fill lanes: on how many, and what part of its work elsewhere keeps a call whole; inf never does."""

    lane_count: int
    enough: float


@dataclass(frozen=True, slots=True)
class LanePace:
    """How far lanes may go ahead: of each other, in calls, and of their turn, in calls for each lane; 0 is any.

    With `in_turn`, of the calls that could start the first one is taken, not the one that most depends on.
    """

    ahead: int
    window: int
    in_turn: bool = False


FASTEST = LanePace(0, 0)
IN_ORDER = LanePace(MOST_AHEAD, 1)
IN_TURN = LanePace(0, 0, in_turn=True)


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A plan with lanes; by estimate, when each run of each lane starts and ends, and when all is done."""

    plan: Plan
    spans: Sequence[Sequence[tuple[float, float]]]
    seconds: float


def schedule(plan: Plan, lane_count: int, model: MachineModel, pace: LanePace | None = None) -> Plan:
    """Give the tiles of all calls to lanes, at most so many; to one if more would not be faster.

    The calls come in an order that the lanes follow too: memory placed for the lanes serves the calls one by one.
    """
    return Scheduling(plan, lane_count, model).schedule(pace).plan


class Scheduling:
    """What is known of a plan's calls before they are given to lanes; that can be done at several paces."""

    def __init__(self, plan: Plan, lane_count: int, model: MachineModel, footprints: Footprints | None = None) -> None:
        self.plan = plan
        self.lane_count = lane_count
        self._model = model
        self._costs = CallCosts(footprints or Footprints(plan), model)
        self._serial = sum(self._costs.whole)
        self._graph: CallGraph | None = None
        if lane_count > 1 and (1 - 1 / lane_count) * self._serial > model.lane + model.wait:
            self._graph = CallGraph.of(self._costs.footprints, self._costs)

    def schedule(self, pace: LanePace | None = None, *, tried: bool = False) -> Scheduled:
        """Give the calls to lanes; without a pace, to be done soonest while memory is not large.

        What is computed later takes memory later: so a pace lowers the memory in use, though a lane may have to wait.
        Lanes that are to be `tried` by the clock need not pay by estimate.
        """
        if self._graph is not None:
            best = _best(self._graph, self._costs, self.lane_count, pace or self._fastest())
            if best.end <= (1 - LEAST_GAIN) * self._serial:
                return Scheduled(best.plan(), best.spans(), best.end)
        if tried and self.lane_count > 1 and self._serial >= WORTH_TRYING:
            model, footprints = _hopeful(self._model), self._costs.footprints
            hopeful = Scheduling(self.plan, self.lane_count, model, footprints).schedule(pace)
            if len(hopeful.plan.lanes) > 1:
                return Scheduled(replace(hopeful.plan, alone=True), hopeful.spans, self._serial)
        plan = replace(self.plan, lanes=lanes_of(replace(self.plan, lanes=())))
        times = [0.0, *accumulate(self._costs.whole)]
        return Scheduled(plan, [list(pairwise(times))], self._serial)

    def _fastest(self) -> LanePace:
        frugal = sum(buffer.bytes for _, buffer in self.plan.of_kind("arena")) > FRUGAL_BYTES
        return LanePace(MOST_AHEAD, WINDOW) if frugal else FASTEST


def _hopeful(model: MachineModel) -> MachineModel:
    """Give the model of a machine whose cores disturb each other less than was measured."""
    shared = max(model.shared_memory, min(model.cores * model.memory, HOPE * model.shared_memory))
    wait, check, lane = (seconds / HOPE for seconds in (model.wait, model.check, model.lane))
    return replace(
        model, wait=wait, check=check, lane=lane, transfer=max(model.l3, HOPE * model.transfer), shared_memory=shared
    )


def _best(graph: CallGraph, costs: CallCosts, lane_count: int, pace: LanePace) -> Timetable:
    """Fill lanes in several ways, and give the one that is done first."""
    tried = (
        _Scheduler(graph, Timetable(costs.footprints, costs, way.lane_count, pace.ahead), way, pace).run()
        for way in _ways(lane_count, len(graph.waiting))
    )
    return min(tried, key=lambda table: table.end)


def _ways(lane_count: int, calls: int) -> Iterator[Way]:
    """List the ways to try: one at least, and as many as a plan's length leaves time for."""
    work, lanes = 0, lane_count
    while lanes > 1:
        for enough in (ENOUGH_ELSEWHERE, SOME_ELSEWHERE, inf):
            if work > MOST_WORK:
                return
            yield Way(lanes, enough)
            work += calls * lanes
        lanes //= 2


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Which calls follow which, how many come before each, and the seconds from its start to the end of all."""

    followers: tuple[tuple[int, ...], ...]
    waiting: tuple[int, ...]
    urgency: tuple[float, ...]

    @staticmethod
    def of(footprints: Footprints, costs: CallCosts) -> CallGraph:
        """Find the order that the bytes of a plan's buffers ask for."""
        before = _late_fills(footprints.plan, predecessors(footprints))
        followers: list[list[int]] = [[] for _ in before]
        for number, earlier in enumerate(before):
            for first in earlier:
                followers[first].append(number)
        urgency = [0.0] * len(before)
        for number in reversed(range(len(before))):
            urgency[number] = costs.whole[number] + max((urgency[later] for later in followers[number]), default=0.0)
        return CallGraph(tuple(map(tuple, followers)), tuple(map(len, before)), tuple(urgency))


def _late_fills(plan: Plan, before: list[list[int]]) -> list[list[int]]:
    """Let calls that read nothing wait until what is put into their memory can be computed.

    They could run at once: all of them would, and their memory would be in use from the start.
    """
    for number, call in enumerate(plan.calls):
        if call.reads:
            continue
        follower = next((later for later in range(number + 1, len(before)) if number in before[later]), None)
        last = max((first for first in before[follower] if first < number), default=None) if follower else None
        if last is not None:
            before[number] = sorted({*before[number], *before[last]})
    return before


class _Scheduler:
    """Fills a timetable."""

    def __init__(self, graph: CallGraph, table: Timetable, way: Way, pace: LanePace) -> None:
        self.graph = graph
        self.table = table
        self.costs = table.costs
        self.enough = way.enough
        self.lane_count = way.lane_count
        self.window = pace.window * way.lane_count or len(graph.waiting)
        self.in_turn = pace.in_turn

    def run(self) -> Timetable:
        """Put all calls into the timetable."""
        waiting = list(self.graph.waiting)
        later = [number for number, count in enumerate(waiting) if count == 0]
        heapify(later)
        ready: list[tuple[float, int]] = []
        done = [False] * len(waiting)
        first, work = 0, 0.0
        while later or ready:
            while later and later[0] < first + self.window:
                number = heappop(later)
                heappush(ready, (0.0 if self.in_turn else -self.graph.urgency[number], number))
                work += self.costs.whole[number]
            number, shares = self._filling(ready) or (heappop(ready)[1], [])
            work -= self.costs.whole[number]
            self.table.put(number, shares or self._shares(number, work))
            done[number] = True
            while first < len(done) and done[first]:
                first += 1
            for follower in self.graph.followers[number]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heappush(later, follower)
        return self.table

    def _filling(self, ready: list[tuple[float, int]]) -> tuple[int, list[Share]] | None:
        """Take a call for the time in which a lane would wait for the most urgent one; None if nothing fits."""
        table, (_, urgent) = self.table, ready[0]
        lane = min(table.lanes, key=lambda one: (table.free[one], one))
        if len(ready) < 2 or table.ready(urgent) - table.free[lane] < LEAST_IDLE * table.model.wait:
            return None
        start = table.ready(urgent)
        looked_at = [heappop(ready) for _ in range(min(len(ready), 1 + MOST_LOOKED_AT))]
        found = None
        for item in looked_at[1:]:
            number, tiles = item[1], self.costs.tiles[item[1]]
            begin = table.start(lane, table.needs(number, 0, tiles))
            if begin + self.costs.whole[number] <= start:
                found = number, [(lane, 0, tiles)]
                looked_at.remove(item)
                break
        for item in looked_at:
            heappush(ready, item)
        return found

    def _shares(self, call: int, work_elsewhere: float) -> list[Share]:
        """Choose the lanes of a call; `work_elsewhere` are the seconds of the other calls that could start now."""
        seconds, tiles = self.costs.whole[call], self.costs.tiles[call]
        needs = self.table.needs(call, 0, tiles)
        begin, lane = min((self.table.start(lane, needs), lane) for lane in self.table.lanes)
        best: list[Share] = [(lane, 0, tiles)]
        model = self.table.model
        most = min(self.lane_count, tiles, int(seconds / (model.wait + model.check)) + 1)
        free = self.table.free
        work_elsewhere += sum(max(0.0, free[other] - begin) for other in self.table.lanes if other != lane)
        if most < 2 or work_elsewhere >= self.enough * (self.lane_count - 1) * seconds:
            return best
        limit = begin + (1 - SPLIT_GAIN) * seconds
        while most > 1:
            for shares in self._splits(call, most):
                end = self.table.finish(call, shares)
                if end < limit:
                    best, limit = shares, end
            most //= 2
        return best

    def _splits(self, call: int, count: int) -> Iterator[list[Share]]:
        """Give ways to share a call out over so many lanes: evenly, and so that all end at the same time.

        Even shares of calls that follow each other touch the same bytes, so that lanes need not wait for each other.
        Where sizes vary all shares are even.
        """
        tiles, free = self.costs.tiles[call], self.table.free
        lanes = sorted(sorted(self.table.lanes, key=lambda lane: (free[lane], lane))[:count])
        yield self._cut(call, lanes, [1 / count] * count)
        if self.costs.shared[call]:
            return
        seconds = self.costs.seconds(call, 0, tiles, count)
        if max(free[lane] for lane in lanes) - min(free[lane] for lane in lanes) < max(1 / tiles, LEAST_GAIN) * seconds:
            return
        uneven = self._cut(call, lanes, _levelled([free[lane] for lane in lanes], seconds))
        if len(uneven) > 1:
            yield uneven

    def _cut(self, call: int, lanes: Sequence[int], parts: Sequence[float]) -> list[Share]:
        cuts = pairwise(self.costs.cuts(call, parts))
        return [(lane, begin, end) for lane, (begin, end) in zip(lanes, cuts, strict=True) if begin < end]


def _levelled(free: list[float], seconds: float) -> list[float]:
    """Share work out over lanes that are free at some times, so that all end at the same time: the part of each."""
    level, count = sum(free), len(free)
    # Lanes that are free too late get nothing: the level is where all work fits below it on the others.
    for latest in sorted(free, reverse=True):
        if count == 1 or (level + seconds) / count > latest:
            break
        level, count = level - latest, count - 1
    end = (level + seconds) / count
    return [max(0.0, end - time) / seconds for time in free]


def frugal_order(footprints: Footprints) -> Plan:
    """Put calls into the order found that has least memory in use at once; into their own if that is as good.

    An order goes back from each result: what a call needs is computed just before it, one operand's whole past after
    the other's, so that little of one waits in memory while another is made. Which operand is first decides the rest; a
    few ways are tried.
    """
    plan, before = footprints.plan, predecessors(footprints)
    return min((plan, *(_ordered(plan, order) for order in _orders(before))), key=live_bytes)


def _ordered(plan: Plan, order: Sequence[int]) -> Plan:
    return replace(plan, calls=tuple(plan.calls[number] for number in order))


def _orders(before: list[list[int]]) -> Iterator[list[int]]:
    """Give orders in which what a call needs comes before it: operands as they come, and those of long pasts first."""
    depth = [0] * len(before)
    for number, needed in enumerate(before):
        depth[number] = 1 + max((depth[one] for one in needed), default=0)
    yield _backwards(before)
    yield _backwards([sorted(needed, key=lambda one: (-depth[one], one)) for needed in before])


def _backwards(before: list[list[int]]) -> list[int]:
    """Follow what calls need, from those that nobody needs, and give each call after all that it needs."""
    needed = {one for those in before for one in those}
    order: list[int] = []
    met = [False] * len(before)
    for last in (number for number in range(len(before)) if number not in needed):
        met[last] = True
        path = [(last, iter(before[last]))]
        while path:
            number, rest = path[-1]
            following = next((one for one in rest if not met[one]), None)
            if following is None:
                order.append(number)
                path.pop()
            else:
                met[following] = True
                path.append((following, iter(before[following])))
    return order
