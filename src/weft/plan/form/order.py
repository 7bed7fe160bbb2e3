"""The lanes of a plan -> which runs are surely done before which run starts.

A run's clock counts, for each lane, the runs that are done whenever it starts: those before it in its own lane, and
those that a wait has made sure of, with all that the awaited lane had waited for itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from weft.errors import InternalError
from weft.plan.form.plan import Lane, Plan, Run, Wait

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

    def advance(self, walkers: list["_Walker"]) -> bool:
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

    def _passes(self, wait: Wait, walkers: list["_Walker"]) -> bool:
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
