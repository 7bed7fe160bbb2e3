"""Run each pushed task at once, on the thread that pushes: the engine to debug with, and the oracle of the others.

A task that fails raises at its push, below the line that pushed it; its variables are poisoned as everywhere.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from sys import _getframe

from weft.engine import lifetime
from weft.engine.base import BaseEngine, mark_place
from weft.engine.failures import execute
from weft.engine.task import Placement, Task, TaskQueue, Var, circular_wait, link, retire


class DueTasks(TaskQueue):
    """The queue of the serial engine: tasks pushed by a task that must come after it, now that it is done."""

    __slots__ = ("due",)

    def __init__(self) -> None:
        super().__init__("serial")
        self.due: deque[Task] = deque()

    def add(self, task: Task) -> None:
        """Do nothing: a task that waits for nothing runs next anyway."""

    def now_ready(self, task: Task) -> None:
        """Take in a task that had to wait for the one that pushed it."""
        self.due.append(task)


class SerialEngine(BaseEngine):
    """Runs each task at its push. Threads that push at once take turns."""

    def __init__(self, errors: str = "every") -> None:
        super().__init__(errors)
        self._queue = DueTasks()
        self._make_lock()
        lifetime.watch(self)

    def _make_lock(self) -> None:
        # Held while a task runs, and reentrant as a task may push. On the other side: another thread's push. A task
        # that waits by other means for such a thread would deadlock: with one task at a time it cannot but.
        self._turn = threading.RLock()

    def push(
        self,
        task: Callable[[], object],
        reads: Iterable[Var] = (),
        writes: Iterable[Var] = (),
        device: str | Placement = "cpu",
        name: str = "",
    ) -> None:
        """Run a callable that reads and writes these variables, and raise what it raises.

        Pushed by a task whose variables it needs, it runs when that task is done.
        """
        item = self.make_task(task, reads, writes, self._queue)
        item.name = name
        mark_place(item, _getframe(1))
        if isinstance(device, Placement):
            item.placement = device
        with self._turn:
            item.number = self.limits.pushed = self.limits.pushed + 1
            for variable in item.writes:
                variable.latest = item
            if self.timeline is not None:
                self.timeline.linked(item)
            link(item)
            if item.pending == 0:
                self._run(item)
                while self._queue.due:
                    self._run(self._queue.due.popleft())
            new = [failure for failure in self.failures.known.values() if failure.number == item.number]
            if new and not new[0].reported:
                self.failures.raise_for_one(new[0])

    def _run(self, task: Task) -> None:
        timeline = self.timeline
        start = timeline.clock() if timeline is not None else 0
        execute(task, self.failures)
        if timeline is not None:
            timeline.ran(task, self._queue.name, start)
        task.done = True
        retire(task)
        self.limits.task_done(0)

    def finish(self, variables: Iterable[Var]) -> None:
        """Do nothing: every task is done, but for one that waits for itself, which is an error."""
        for variable in variables:
            writer = variable.latest
            if writer is not None and not writer.done:
                # On the other side: the thread whose task it is. If it is this one, we get the lock and see it undone.
                with self._turn:
                    if not writer.done:
                        raise circular_wait(writer)

    def finish_all(self) -> None:
        """Wait for the tasks of other threads: this thread's own are done."""
        with self._turn:
            pass

    def stop(self) -> None:
        """Do nothing: there is no thread."""

    def before_fork(self) -> None:
        """Let the task that runs end first, so that it is not copied halfway."""
        self._turn.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._turn.release()

    def after_fork_in_child(self) -> None:
        """Begin anew, and leave the timeline to the parent."""
        self._make_lock()
        self.timeline = None
