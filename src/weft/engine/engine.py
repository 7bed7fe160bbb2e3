"""Run pushed tasks on threads, as soon as what they read and write allows.

A push only puts the task into the inbox and wakes a worker that sleeps. Workers do the rest: whoever gets the link
lock takes the inbox in order, links each task behind those it must follow, and retires finished ones. Nobody waits
for that lock: a worker that finds it taken leaves what it has in the inbox, where the holder looks again after
releasing it. So the thread that pushes never touches the graph of tasks, and a KeyboardInterrupt, which comes to the
main thread only, can never find it half changed.
"""

import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from sys import _getframe
from types import MappingProxyType

from weft.engine import lifetime
from weft.engine.base import BaseEngine, mark_place
from weft.engine.failures import execute, forget_frames
from weft.engine.task import UNLINKED, Barrier, Inbox, Placement, Task, Var, link, retire
from weft.engine.workers import WORKING, Worker, Workers
from weft.errors import ExecutionError, UsageError

DEFAULT_DEVICES: Mapping[str, int] = MappingProxyType({"cpu": 1, "copy": 1})


class Engine(BaseEngine):
    """Runs tasks on threads: one for each lane of each device.

    `devices` says how many lanes a device has: `{"cpu": 2, "copy": 1}` makes the lanes cpu:0, cpu:1 and copy:0. A
    task pushed to "cpu:1" runs on that lane, in the order pushed there; one pushed to "cpu" runs on any of them.
    """

    def __init__(self, devices: Mapping[str, int] = DEFAULT_DEVICES, errors: str = "every") -> None:
        super().__init__(errors)
        self.inbox: Inbox = deque()
        self.stopping = False
        self.workers = Workers(self, devices)
        self._queues = self.workers.queues
        self._barriers: list[Barrier] = []
        self._make_locks()
        lifetime.watch(self)

    def _make_locks(self) -> None:
        # Reentrant, because the collector may run a finalizer in the middle of a push, and that may push a deletion.
        # On the other side: other threads that push, for a few instructions that wait for nothing.
        self._push_lock = threading.RLock()
        # On the other side: the worker that links and retires. It never waits while it does, so those few that wait
        # for this lock (a fork, a task that waits for a task) wait for a finite piece of computing.
        self._link_lock: LockType = allocate_lock()
        # On the other side: other threads that begin to wait for a task, for one append.
        self._waiters_lock: LockType = allocate_lock()

    def push(
        self,
        task: Callable[[], object],
        reads: Iterable[Var] = (),
        writes: Iterable[Var] = (),
        device: str | Placement = "cpu",
        name: str = "",
    ) -> None:
        """Queue a callable that reads and writes these variables; returns before it has run.

        A variable named in both is changed in place. Past the engine's limit the push waits for room.
        """
        lane = self._queues.get(device) or self.workers.find(device)
        item = self.make_task(task, reads, writes, lane)
        item.name = name
        mark_place(item, _getframe(1))
        size = 0
        if isinstance(device, Placement):
            item.placement = device
            size = device.bytes
        limits = self.limits
        if (size or limits.pushed - limits.done >= limits.tasks) and item.placement.bounded:
            self._wait_for_room(size)
        self._enqueue(item, size)
        if lane.sleepers:
            lane.wake()

    def _enqueue(self, item: Task, size: int) -> None:
        limits = self.limits
        with self._push_lock:
            try:
                limits.pushed = item.number = limits.pushed + 1
                limits.bytes_pushed += size
                for variable in item.writes:
                    variable.latest = item
                self.inbox.append(item)
            except BaseException:
                # A KeyboardInterrupt may come between any two of these lines. The task then counts as pushed: to
                # finish the push twice does no harm, as the one who links ignores a task it has linked.
                if item.number:
                    for variable in item.writes:
                        variable.latest = item
                    self.inbox.append(item)
                raise
            if size or limits.pushed - limits.done > limits.most_tasks:
                limits.note_most()

    def make_room(self, size: int = 0) -> None:
        """Wait until a task of this size has room within the limit: for pushes that are not bounded themselves."""
        limits = self.limits
        if limits.pushed - limits.done >= limits.tasks or limits.bytes_pushed - limits.bytes_done + size > limits.bytes:
            self._wait_for_room(size)

    def _wait_for_room(self, size: int) -> None:
        # A push from inside a task does not wait for room: the task itself is in flight, and were every worker to
        # wait like this there would be nobody left to make room.
        # Nor does one from a finalizer in the middle of another push, which holds a lock that tasks need to push.
        inside = working_on(self) is not None or self._push_lock._is_owned()  # type: ignore[attr-defined]
        if not inside and not self.limits.has_room(size):
            self.limits.wait_for_room(size)

    def finish(self, variables: Iterable[Var]) -> None:
        """Block until the last write pushed to each of these variables is done, failed or not."""
        writers = [variable.latest for variable in variables]
        waited = [writer for writer in writers if writer is not None and not writer.done]
        # The last one pushed is likely to be done last: who waits for it first is woken once.
        for writer in sorted(waited, key=lambda writer: -writer.number) if len(waited) > 1 else waited:
            if not writer.done:
                self._block(writer)

    def _block(self, task: Task) -> None:
        if task.lane.abandon is not None:
            task.lane.abandon(task)
            return
        self.blocked_waits += 1
        gate = allocate_lock()
        gate.acquire()
        with self._waiters_lock:
            if task.waiters is None:
                task.waiters = [gate]
            else:
                task.waiters.append(gate)
        worker = working_on(self)
        if worker is not None:
            self._step_aside(worker, task)
        if not task.done:
            # Its push has woken the lane, unless a KeyboardInterrupt came between the two.
            self.workers.make_sure(bool(self.inbox))
            # On the other side: the worker that runs the task. It sets `done` before it looks at `waiters`, and we
            # look in the other order, so one of us sees the other. The task will run, as everything it waits for was
            # pushed before it, and a worker whose task waits has given its lane to another. An interrupt leaves only
            # the gate behind, which that worker opens for nobody.
            gate.acquire()
        if worker is not None:
            with self._link_lock:
                self.workers.resume(worker)
            self.advance()

    def _step_aside(self, worker: Worker, task: Task) -> None:
        assert worker.task is not None, "code that runs on a worker runs in its task"
        try:
            with self._link_lock:
                self._drain()
                refuse_circular_wait(worker.task, task, self.workers.blocked)
                self.workers.replace(worker, task)
        finally:
            self.advance()  # what others left in the inbox while we held the lock

    def is_quiet(self) -> bool:
        """Tell whether nothing is in flight, and nothing has failed; for long only to who holds `turn`."""
        limits = self.limits
        failures = self.failures
        return not (limits.done != limits.pushed or self.inbox or failures.known or failures.closed or self.timeline)

    @property
    def turn(self) -> LockType:
        """What to hold while a task that would be waited for at once runs on the thread that would wait.

        While it is held, what others push stays in the inbox, so that it comes after; `advance` follows. The task must
        be short, and wait for no other. A KeyboardInterrupt finds no graph of tasks half changed, as there is none.
        """
        return self._link_lock

    def take_turn(self) -> bool:
        """Hold `turn`, unless another thread does."""
        return self._link_lock.acquire(blocking=False)

    def give_turn_back(self) -> None:
        """End a turn, and see to what was pushed meanwhile."""
        self._link_lock.release()
        if self.inbox:
            self.advance()

    @property
    def skips_none(self) -> bool:
        """Whether no failure may keep a task from running, and nobody notes when tasks run."""
        failures = self.failures
        return not (failures.known or failures.closed or self.timeline)

    def perform_here(self, call: Callable[[], object], writes: Callable[[], Iterable[Var]], name: str) -> None:
        """Run a task on this thread, which holds `turn`, while the engine is quiet; `writes` is asked if it fails."""
        try:
            call()
        except BaseException as error:
            task = self.make_task(call, (), writes(), self.workers.find("cpu"))
            task.name = name
            mark_place(task, _getframe(1))
            with self._push_lock:
                limits = self.limits
                task.number = limits.pushed + 1
                limits.pushed = limits.done = task.number
            forget_frames(error)
            self.failures.note(task, error)
            task.call = None
            if not isinstance(error, Exception):
                raise
        self.limits.here += 1

    def finish_all(self) -> None:
        """Block until every task pushed before this call is done, failed or not."""
        if working_on(self) is not None:
            raise UsageError(
                "waitall() was called inside a task",
                why="the task would wait for its own end",
                fix="wait for the variables it needs, or better name them in the reads of its push",
            )
        limits = self.limits
        if limits.done == limits.pushed:
            return
        self.blocked_waits += 1
        gate = allocate_lock()
        gate.acquire()
        barrier = Barrier(gate)
        with self._push_lock:
            barrier.number = limits.pushed
            self.inbox.append(barrier)
        if limits.done != limits.pushed:
            self.workers.make_sure(bool(self.inbox))  # as in `_block`
            # On the other side: the worker that retires the last task before the barrier. One is not done yet, so a
            # worker will come by the inbox after our look, and find the barrier.
            gate.acquire()

    def perform(self, task: Task, worker: Worker) -> None:
        """Run a task on the thread of a worker, tell who waits for it, and retire it."""
        timeline = self.timeline
        if timeline is None:
            execute(task, self.failures)
        else:
            start = timeline.clock()
            execute(task, self.failures)
            timeline.ran(task, worker.lane.name, start)
        task.done = True
        if task.waiters is not None:
            for gate in task.waiters:
                gate.release()
        if self._link_lock.acquire(blocking=False):
            try:
                self._retire(task)
                if self.inbox:
                    self._drain()
            finally:
                self._link_lock.release()
        else:
            self.inbox.append(task)
        if self.inbox:
            self.advance()

    def advance(self) -> None:
        """Link what was pushed and retire what is done, unless another thread is doing so."""
        # The loop is the promise to those who found the lock taken: its holder looks again after releasing it.
        while self.inbox and self._link_lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._link_lock.release()

    def _drain(self) -> None:
        inbox = self.inbox
        while inbox:
            item = inbox.popleft()
            if isinstance(item, Barrier):
                self._meet(item)
            elif item.done:
                self._retire(item)
            elif item.pending == UNLINKED:
                self._link(item)

    def _link(self, task: Task) -> None:
        if self.timeline is not None:
            self.timeline.linked(task)
        link(task)
        task.lane.add(task)

    def _retire(self, task: Task) -> None:
        if task.call is None:
            return
        retire(task)
        self.limits.task_done(task.placement.bytes)
        if self._barriers:
            for barrier in self._barriers:
                if task.number <= barrier.number:
                    barrier.remaining -= 1
            self._pass_barriers()

    def _meet(self, barrier: Barrier) -> None:
        # All tasks before the barrier are linked and none behind it, so those not done are those not yet retired.
        barrier.remaining = barrier.number - self.limits.done
        self._barriers.append(barrier)
        self._pass_barriers()

    def _pass_barriers(self) -> None:
        for barrier in self._barriers:
            if barrier.remaining <= 0:
                barrier.gate.release()
        self._barriers = [barrier for barrier in self._barriers if barrier.remaining > 0]

    def stop(self) -> None:
        """End the worker threads, and wait for them if their tasks are done."""
        self.stopping = True
        self.workers.stop(join=self.limits.done == self.limits.pushed)

    def before_fork(self) -> None:
        """Hold both locks over a fork, so that no push and no linking is copied halfway."""
        # On the other side: see `_make_locks`. The link lock first: a worker that links may run a finalizer that
        # pushes, while no push ever takes the link lock.
        self._link_lock.acquire()
        self._push_lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on where the fork found us."""
        self._push_lock.release()
        self._link_lock.release()
        if self.inbox:
            self.workers.make_sure(bool(self.inbox))  # what workers left in the inbox while the lock was held

    def after_fork_in_child(self) -> None:
        """Begin anew, without tasks and threads; what the parent was computing is poisoned here."""
        self._make_locks()
        WORKING.worker = None  # a task that forks goes on as ordinary code
        self.workers.disown(self._abandon)
        for item in self.inbox:
            if isinstance(item, Task):
                self._abandon(item)
        self.inbox.clear()
        self._barriers = []
        self.limits.forget_tasks()
        self.timeline = None  # the parent writes it

    def _abandon(self, task: Task) -> None:
        if task.done:
            return
        fork = ExecutionError("the process was forked while this task was queued; it runs in the parent only")
        # A variable that a task of this process writes later keeps what that one says of it.
        task.writes = tuple(
            variable for variable in task.writes if variable.latest is None or _inherited(variable.latest)
        )
        failure = self.failures.record(task, fork)
        failure.reported = failure.inherited = True
        task.done = True
        task.call = None


def _inherited(task: Task) -> bool:
    return task.lane.abandon is not None


def working_on(engine: Engine) -> Worker | None:
    """Give the worker of this engine whose thread this is, if it is one."""
    worker: Worker | None = getattr(WORKING, "worker", None)
    return worker if worker is not None and worker.core is engine else None


def refuse_circular_wait(waiting: Task, target: Task, blocked: Iterable[Worker]) -> None:
    """Raise a UsageError if `target` comes after `waiting`; the caller holds the link lock with an empty inbox.

    A task comes after another if it uses the same variables later, or if its own body waits for it. That it stands
    behind it in a lane does not count: the order of lanes is loosened while a task waits.
    """
    after: dict[Task, list[Task]] = {}
    for worker in blocked:
        if worker.task is not None and worker.waits_for is not None:
            after.setdefault(worker.waits_for, []).append(worker.task)
    reached = {waiting}
    stack = [waiting]
    while stack:
        task = stack.pop()
        for later in (*(task.successors or ()), *after.get(task, ())):
            if later not in reached:
                reached.add(later)
                stack.append(later)
    if target in reached:
        raise UsageError(
            f"the task {waiting.title()} waits for {_name(waiting, target)}, which can only run after it",
            where=waiting.where(),
            why="both would wait for ever",
            fix="wait outside the task, or name what it needs in the reads of its push",
        )


def _name(waiting: Task, target: Task) -> str:
    return "itself" if target is waiting else f"the task {target.title()}"
