"""Names of devices -> lanes, pools, and the workers that serve them."""

import re
from collections.abc import Callable, Mapping

from weft.engine.lanes import Lane, Levels, Pool
from weft.engine.task import Placement, Task
from weft.engine.workers import Core, Worker
from weft.errors import UsageError

LANE_NAME = re.compile(r"(.+):([0-9]+)")


class Crew:
    """The queues of an engine by name, and its workers.

    A device with n lanes has the queues `name:0` ... `name:n-1`, each with one worker, and `name`, which all of them
    serve. A lane of a higher number is made when it is first named, with a worker that serves nothing else.
    """

    def __init__(self, core: Core, devices: Mapping[str, int]) -> None:
        self.queues: dict[str | Placement, Levels] = {}  # by name only: `push` asks before it looks what it was given
        self.workers: list[Worker] = []
        self.blocked: list[Worker] = []  # those whose task waits for another task; changed under the link lock
        self._core = core
        self._devices = dict(devices)
        self.hire()

    def hire(self) -> None:
        """Make the lanes, pools and workers anew; threads start when there is work for them."""
        self.queues.clear()
        self.workers.clear()
        self.blocked.clear()
        for device, lanes in self._devices.items():
            if lanes < 1:
                raise UsageError(f"the device {device!r} would have {lanes} lanes", fix="give it at least 1")
            pool = Pool(device)
            self.queues[device] = pool
            for index in range(lanes):
                self._make_lane(f"{device}:{index}", pool)

    def find(self, device: str | Placement) -> Levels:
        """Find the queue of a device or lane, making a lane that is named for the first time."""
        name = device.device if isinstance(device, Placement) else device
        queue = self.queues.get(name)
        if queue is not None:
            return queue
        match = LANE_NAME.fullmatch(name)
        if match is None or match[1] not in self._devices:
            raise UsageError(
                f"this engine has no device {name!r}",
                why="it has " + ", ".join(str(queue) for queue in self.queues),
                fix='name one of these, or make the engine with it: Engine({"cpu": 2, "copy": 1})',
            )
        return self._make_lane(name, Pool(name))

    def _make_lane(self, name: str, pool: Pool) -> Levels:
        lane = Lane(name)
        # Two threads that name a new lane at once must get the same one: setdefault is one step.
        kept = self.queues.setdefault(name, lane)
        if kept is lane:
            self.workers.append(Worker(self._core, lane, pool))
        return kept

    def replace(self, worker: Worker, task: Task) -> None:
        """Give the lane of a worker whose task will wait for another task to a new worker; under the link lock."""
        worker.waits_for = task
        self.blocked.append(worker)
        if not worker.replaced:
            worker.replaced = True
            self.workers.append(Worker(self._core, worker.lane, worker.pool))
            self.workers.remove(worker)
            worker.pool.wake()
        for lane in self._lanes():
            lane.strict = False
            lane.wake()  # what stood behind a head that is not ready may start now

    def resume(self, worker: Worker) -> None:
        """Note that the task of a worker waits no more; under the link lock."""
        worker.waits_for = None
        self.blocked.remove(worker)
        for lane in self._lanes():
            lane.strict = not self.blocked

    def _lanes(self) -> list[Lane]:
        return [queue for queue in list(self.queues.values()) if isinstance(queue, Lane)]

    def make_sure(self, pushed: bool) -> None:
        """Before a wait: finish wakes that a KeyboardInterrupt cut short; `pushed` says that the inbox is not empty."""
        workers = list(self.workers)
        for worker in workers:
            if worker.woken:
                worker.open_gate()
        if pushed and not any(worker.woken for worker in workers):
            # One that is awake would look too, but only when the task it runs is done.
            next((worker for worker in workers if not worker.awake()), workers[0]).wake()

    def stop(self, join: bool) -> None:
        """End the threads; `join` waits for them."""
        for worker in self.workers:
            worker.end()
        for worker in self.workers:
            if join:
                worker.join()

    def disown(self, abandon: Callable[[Task], None]) -> None:
        """In a child process: give up what the parent's workers run and hold, and make new ones."""
        for queue in self.queues.values():
            queue.abandon = abandon
        for worker in (*self.workers, *self.blocked):
            worker.replaced = True
            if worker.task is not None:
                abandon(worker.task)
        self.hire()
