"""Serve lanes and pools with threads, which sleep while there is no task."""

import re
import threading
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from weft.engine.lanes import Lane, Pool, PriorityQueue, choose
from weft.engine.task import Inbox, Placement, Task
from weft.errors import UsageError

LANE_NAME = re.compile(r"(.+):([0-9]+)")
WORKING = threading.local()  # `worker`: the worker whose thread this is


class Core(Protocol):
    """What a worker needs of its engine."""

    inbox: Inbox
    stopping: bool

    def perform(self, task: Task, worker: "Worker") -> None:
        """Run a task and see to all that follows from it being done."""

    def advance(self) -> None:
        """Link what was pushed and retire what is done, unless another thread is doing so."""


class Worker:
    """One thread, started when it is first needed, that serves a lane and its device's pool.

    It sleeps at its gate: a lock that `wake` opens and that the worker closes by passing. An open gate is a promise of
    one more look for work. To sleep, a worker writes itself into the lists of sleepers and then looks once more: what
    arrived before could wake nobody, what arrives after wakes it.
    """

    def __init__(self, core: Core, lane: Lane, pool: Pool) -> None:
        self.core = core
        self.lane = lane
        self.pool = pool
        self.task: Task | None = None  # the one it is running, if any
        self.waits_for: Task | None = None  # the one which that task waits for, if it does
        self.replaced = False  # another worker has taken over the lane: finish the task, then end
        self.woken = False  # its gate has been opened, which makes further wakes cheap until it is up
        self._unstarted: deque[None] = deque([None])  # taken by whoever starts the thread
        self._seat: deque[None] = deque([None])  # taken by the thread: there is one, even after an interrupted start
        self._gate: LockType = allocate_lock()
        self._gate.acquire()
        self._running: LockType = allocate_lock()  # held from the creation of the worker to the end of its thread
        self._running.acquire()
        lane.sleepers[self] = None
        pool.sleepers[self] = None

    def wake(self) -> bool:
        """Wake this worker if it sleeps, starting its thread the first time; tell whether this call did."""
        if self.woken:
            return False
        # The interpreter handles signals and changes threads after calls, not between these two lines; and were it to,
        # whoever waits for a task makes sure of the gate (`Workers.make_sure`).
        self.woken = True
        self.open_gate()
        return True

    def awake(self) -> bool:
        """Tell whether it is up, and so will look at the inbox before it sleeps."""
        return self not in self.lane.sleepers

    def open_gate(self) -> None:
        """Make the worker look for work at least once more, starting its thread the first time."""
        with suppress(RuntimeError):  # it is open already, from an earlier wake
            self._gate.release()
        if self._unstarted:
            self._start()

    def end(self) -> None:
        """Let the thread end, if it ever began: the engine has set `stopping`."""
        self._unstarted.clear()
        self.open_gate()

    def running(self) -> bool:
        """Tell whether it has a thread that has not ended."""
        return not self._seat and self._running.locked()

    def join(self) -> None:
        """Wait until the thread has ended; the engine has set `stopping`, and no task is left."""
        if self.running():
            # On the other side: a worker that has nothing to do, has been woken and looks at `stopping` next.
            with self._running:
                pass

    def _start(self) -> None:
        try:
            self._unstarted.pop()
        except IndexError:
            return  # another thread starts it
        try:
            # Not a threading.Thread: its start takes a lock of that module, and were the collector to run a finalizer
            # just then that pushes a deletion, and the push to start a thread, it would wait for itself. A thread like
            # this does not keep a program that is leaving; the engine's own end has then finished what was queued.
            start_new_thread(self._run, ())
        except BaseException:
            self._unstarted.append(None)  # interrupted, or no thread to be had: the next wake tries again
            raise

    def _run(self) -> None:
        try:
            self._seat.pop()
        except IndexError:
            return
        WORKING.worker = self
        self._leave_sleepers()
        try:
            self._serve()
        finally:
            self._running.release()

    def _serve(self) -> None:
        core, lane, pool = self.core, self.lane, self.pool
        while not self.replaced:
            task = choose(lane, pool)
            if task is not None:
                self.task = task
                core.perform(task, self)
                self.task = None
            elif core.stopping:
                return
            else:
                self._sleep()

    def _sleep(self) -> None:
        core = self.core
        self.lane.sleepers[self] = None
        self.pool.sleepers[self] = None
        # Where another thread holds the link lock this does nothing, and that is enough: the holder looks at the
        # inbox again after releasing it, and wakes us for what it finds.
        core.advance()
        if self.lane.head() is None and self.pool.head() is None and not core.stopping:
            # On the other side: a push to this lane or device, a worker that makes a task of ours ready, or the end of
            # the engine; all of them open the gate without waiting for anything. Nobody waits for a sleeping worker
            # without waking it, so this closes no circle.
            self._gate.acquire()
        self._leave_sleepers()

    def _leave_sleepers(self) -> None:
        self.lane.sleepers.pop(self, None)
        self.pool.sleepers.pop(self, None)
        self.woken = False


class Workers:
    """The queues of an engine by name, and its workers.

    A device with n lanes has the queues `name:0` ... `name:n-1`, each with one worker, and `name`, which all of them
    serve. A lane of a higher number is made when it is first named, with a worker that serves nothing else.
    """

    def __init__(self, core: Core, devices: Mapping[str, int]) -> None:
        self.queues: dict[
            str | Placement, PriorityQueue
        ] = {}  # by name only: `push` asks before it looks what it was given
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

    def find(self, device: str | Placement) -> PriorityQueue:
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

    def _make_lane(self, name: str, pool: Pool) -> PriorityQueue:
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
