"""A lane and a pool -> a thread that runs their tasks, and sleeps while there are none."""

import threading
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from contextlib import suppress
from typing import Protocol

from weft.engine.lanes import Lane, Pool, choose
from weft.engine.task import Inbox, Task

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
        # whoever waits for a task makes sure of the gate (`Crew.make_sure`).
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
