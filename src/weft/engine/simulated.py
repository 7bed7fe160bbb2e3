"""Run pushed tasks one step at a time, in an order that a seed chooses and on a clock that only the tasks move.

For tests: the same rules and queues as the threaded engine, without threads. The same seed gives the same order; many
seeds try many. Nothing runs before somebody waits or calls `step`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from sys import _getframe
from types import MappingProxyType

from weft.engine.base import BaseEngine, mark_place
from weft.engine.failures import execute
from weft.engine.lanes import Lane, Pool, PriorityQueue, choose
from weft.engine.task import Placement, Task, Var, circular_wait, link, retire
from weft.engine.workers import LANE_NAME
from weft.errors import UsageError

TWO_LANES: Mapping[str, int] = MappingProxyType({"cpu": 2, "copy": 1})


class VirtualClock:
    """Time in nanoseconds that passes only when a task says it takes some."""

    def __init__(self) -> None:
        self.now = 0
        self.spent = 0

    def spend(self, nanoseconds: int) -> None:
        """Say, inside a task, that it takes this long: its lane is busy until then."""
        self.spent += nanoseconds

    def __call__(self) -> int:
        """Give the time, as the clock of a timeline."""
        return self.now


@dataclass
class SimulatedWorker:
    """One simulated worker."""

    lane: Lane
    pool: Pool
    task: Task | None = None
    start: int = 0
    end: int = 0
    ran: bool = False
    replaced: bool = False


class SimulatedEngine(BaseEngine):
    """An engine whose every choice is made by a seed.

    A task is first begun and later ended; in between others begin and end. Its body runs at either moment, as the
    seed says: so two tasks that wrongly overlap see each other's effects for some seed.
    """

    def __init__(self, seed: int, devices: Mapping[str, int] = TWO_LANES, errors: str = "every") -> None:
        super().__init__(errors)
        self.clock = VirtualClock()
        self.timeline_clock = self.clock
        self._random = Random(seed)  # an order to try, not a secret
        self._queues: dict[str, PriorityQueue] = {}
        self._workers: list[SimulatedWorker] = []
        self._bodies: list[SimulatedWorker] = []  # those whose task's body runs, the innermost last
        for device, lanes in devices.items():
            pool = self._queues[device] = Pool(device)
            for index in range(lanes):
                self._add_lane(f"{device}:{index}", pool)

    def _add_lane(self, name: str, pool: Pool) -> Lane:
        lane = Lane(name)
        self._queues[name] = lane
        self._workers.append(SimulatedWorker(lane, pool))
        return lane

    def _queue(self, name: str) -> PriorityQueue:
        if name not in self._queues:
            match = LANE_NAME.fullmatch(name)
            if match is None or match[1] not in self._queues:
                raise UsageError(f"this engine has no device {name!r}", why="it has " + ", ".join(self._queues))
            return self._add_lane(name, Pool(name))
        return self._queues[name]

    def push(
        self,
        task: Callable[[], object],
        reads: Iterable[Var] = (),
        writes: Iterable[Var] = (),
        device: str | Placement = "cpu",
        name: str = "",
    ) -> None:
        """Queue a callable that reads and writes these variables; past the limit, others are run first."""
        placement = device if isinstance(device, Placement) else Placement(device)
        item = self.make_task(task, reads, writes, self._queue(placement.device))
        item.name = name
        item.placement = placement
        mark_place(item, _getframe(1))
        limits = self.limits
        if placement.bounded and not self._bodies and not limits.has_room(placement.bytes):
            limits.waits += 1
            while not limits.has_room(placement.bytes):
                self.step()
        item.number = limits.pushed = limits.pushed + 1
        limits.bytes_pushed += placement.bytes
        limits.note_most()
        for variable in item.writes:
            variable.latest = item
        if self.timeline is not None:
            self.timeline.linked(item)
        link(item)
        item.lane.add(item)

    def step(self) -> bool:
        """Begin or end one task, as the seed chooses, or else move the clock; tell whether anything was left to do."""
        inside = {id(worker) for worker in self._bodies}
        running = [worker for worker in self._workers if worker.task is not None and id(worker) not in inside]
        choices = [worker for worker in running if worker.end <= self.clock.now]
        choices += [worker for worker in self._workers if worker.task is None and _has_work(worker)]
        if not choices:
            if not running:
                return False
            self.clock.now = min(worker.end for worker in running)
            return True
        worker = self._random.choice(choices)
        if worker.task is None:
            self._begin(worker)
        else:
            self._finish(worker, worker.task)
        return True

    def _begin(self, worker: SimulatedWorker) -> None:
        for _, tasks in worker.pool.deques:
            self._random.shuffle(tasks)
        worker.task = choose(worker.lane, worker.pool)
        worker.start = worker.end = self.clock.now
        worker.ran = False
        if worker.task is not None and self._random.random() < 0.5:
            self._run_body(worker, worker.task)

    def _run_body(self, worker: SimulatedWorker, task: Task) -> None:
        outer, self.clock.spent = self.clock.spent, 0
        self._bodies.append(worker)
        execute(task, self.failures)
        self._bodies.pop()
        worker.end = self.clock.now + self.clock.spent
        worker.ran = True
        self.clock.spent = outer

    def _finish(self, worker: SimulatedWorker, task: Task) -> None:
        if not worker.ran:
            self._run_body(worker, task)
            if worker.end > self.clock.now:
                return
        if self.timeline is not None:
            self.timeline.ran(task, worker.lane.name, worker.start)
        task.done = True
        retire(task)
        self.limits.task_done(task.placement.bytes)
        worker.task = None
        if worker.replaced:
            self._workers.remove(worker)

    def finish(self, variables: Iterable[Var]) -> None:
        """Take steps until the last write pushed to each of these variables is done."""
        for variable in variables:
            writer = variable.latest
            if writer is None or writer.done:
                continue
            self.blocked_waits += 1
            if self._bodies and not self._bodies[-1].replaced:
                # As in the threaded engine: a task that waits gives its lane to another worker.
                worker = self._bodies[-1]
                worker.replaced = True
                self._workers.append(SimulatedWorker(worker.lane, worker.pool))
            while not writer.done:
                for worker in self._workers:
                    worker.lane.strict = not self._bodies
                if not self.step():
                    raise circular_wait(writer)

    def finish_all(self) -> None:
        """Take steps until no task is left."""
        if self._bodies:
            raise UsageError("waitall() was called inside a task", why="the task would wait for its own end")
        for worker in self._workers:
            worker.lane.strict = True
        while self.step():
            pass

    def stop(self) -> None:
        """Do nothing: there is no thread."""


def _has_work(worker: SimulatedWorker) -> bool:
    return not worker.replaced and (worker.lane.head() is not None or worker.pool.head() is not None)
