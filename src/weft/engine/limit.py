"""Bound what is in flight: a push waits for room where too many tasks or bytes are between push and done."""

import os
from _thread import LockType, allocate_lock
from collections import deque
from typing import Literal

from weft.errors import UsageError

MOST_TASKS = 65_536
SHARE_OF_MEMORY = 4
Bound = int | Literal["default"] | None  # a number, back to what it was at first, or as it is
RESUME_AT = (3, 4)  # of the limit: to wake a pusher for every single task would cost two thread switches for each


def quarter_of_memory() -> int:
    """Count a quarter of this machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE_OF_MEMORY


class InFlightLimit:
    """Counts of tasks and bytes pushed and done, and the pushes that wait for room.

    The counts of pushes belong to the holder of the push lock, those of done tasks to the holder of the link lock.
    Several threads that push at the same moment may each find the last room: the bound is then exceeded by one task
    for each of them.
    """

    def __init__(self) -> None:
        self.tasks = MOST_TASKS
        self.bytes = quarter_of_memory()
        self.pushed = 0
        self.done = 0
        self.bytes_pushed = 0
        self.bytes_done = 0
        self.most_tasks = 0
        self.most_bytes = 0
        self.waits = 0
        self.here = 0  # tasks that ran on the thread that would have waited for them, and were never in flight
        self.gates: deque[LockType] = deque()

    def change(self, tasks: Bound, size: Bound) -> None:
        """Set new bounds; None leaves one as it is, "default" makes it what it was at first."""
        most_tasks = _bound("tasks", tasks, self.tasks, MOST_TASKS)
        self.bytes = _bound("bytes", size, self.bytes, quarter_of_memory())
        self.tasks = most_tasks
        self.open_gates()

    def has_room(self, size: int) -> bool:
        """Tell whether a task of this size may be pushed; one larger than the whole limit may, alone."""
        tasks = self.pushed - self.done
        return not tasks or (tasks < self.tasks and self.bytes_pushed - self.bytes_done + size <= self.bytes)

    def wait_for_room(self, size: int) -> None:
        """Wait until a task of this size may be pushed."""
        self.waits += 1
        while not self.has_room(size):
            gate = allocate_lock()
            gate.acquire()
            self.gates.append(gate)
            if not self.has_room(size):
                # On the other side: the worker that finishes a task and finds the queue drained far enough; at the
                # latest the one that finishes the last task, after which there is room for anything. Workers do not
                # come here, so all tasks in flight go on. The look between the two lines above is for a worker that
                # counted its task before it could see our gate.
                gate.acquire()

    def task_done(self, size: int) -> None:
        """Count one task as done, and wake the pushes that wait once there is room worth waking for."""
        self.done += 1
        self.bytes_done += size
        if self.gates and self._drained():
            self.open_gates()

    def open_gates(self) -> None:
        """Let every push that waits look again."""
        while self.gates:
            self.gates.popleft().release()

    def forget_tasks(self) -> None:
        """Count nothing as in flight: in a child process, which has none of its parent's tasks and threads."""
        self.done = self.pushed
        self.bytes_done = self.bytes_pushed
        self.gates.clear()

    def note_most(self) -> None:
        """Keep the largest numbers ever in flight; called after each push, under the push lock."""
        self.most_tasks = max(self.most_tasks, self.pushed - self.done)
        self.most_bytes = max(self.most_bytes, self.bytes_pushed - self.bytes_done)

    def _drained(self) -> bool:
        part, whole = RESUME_AT
        tasks = self.pushed - self.done
        size = self.bytes_pushed - self.bytes_done
        return tasks <= min(self.tasks - 1, self.tasks * part // whole) and size <= self.bytes * part // whole


def _bound(name: str, value: Bound, now: int, default: int) -> int:
    if value is None:
        return now
    if value == "default":
        return default
    if not isinstance(value, int):
        raise UsageError(f"limit({name}={value!r})", fix='give a number of at least 1, or "default"')
    if value < 1:
        raise UsageError(f"limit({name}={value}) would let nothing run", fix="give a number of at least 1")
    return value
