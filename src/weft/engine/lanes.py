"""Queue linked tasks for one worker, or for any worker of a device.

A `Lane` belongs to one worker and starts its tasks in the order pushed, as a CUDA stream does: a task that is not
ready holds up those behind it. A `Pool` belongs to all workers of a device and starts whatever is ready. In both a
higher priority goes first. Neither can deadlock: of all tasks not yet done, the one pushed first waits for nothing,
and nothing of its priority is in front of it. (Where that one waits for another in its body, see `Lane`.)

Only the holder of the engine's link lock adds; workers take without a lock. Each such step is one operation on a
deque, which the interpreter makes whole.
"""

from collections import deque

from weft.engine.task import Task, TaskQueue


class PriorityQueue(TaskQueue):
    """Tasks by priority: one deque for each, the highest first."""

    __slots__ = ("deques", "ordinary")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ordinary: deque[Task] = deque()  # priority 0, which most tasks have
        self.deques: tuple[tuple[int, deque[Task]], ...] = ((0, self.ordinary),)

    def insert(self, task: Task) -> None:
        """Put a task behind the others of its priority."""
        priority = task.placement.priority
        if not priority:
            self.ordinary.append(task)
            return
        for level, tasks in self.deques:
            if level == priority:
                tasks.append(task)
                return
        # A new tuple, not a longer list: a worker may be going through the old one.
        self.deques = tuple(sorted([*self.deques, (priority, deque([task]))], key=lambda pair: -pair[0]))


class Lane(PriorityQueue):
    """The tasks of one worker, started in the order pushed.

    While a task of the engine waits for another one in its body, the order is loosened: whatever is ready may start.
    The task it waits for may stand behind one that cannot start before the waiting task is done.
    """

    __slots__ = ("strict",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.strict = True

    def add(self, task: Task) -> None:
        """Take in a task that has just been linked."""
        self.insert(task)
        if self.sleepers:
            self.wake()

    def now_ready(self, task: Task) -> None:  # noqa: ARG002  # a lane finds it at its head
        """Wake the worker: it may have been waiting for this task at the head of the lane."""
        if self.sleepers:
            self.wake()

    def head(self) -> Task | None:
        """Find the task to start next, without taking it; only the worker of the lane asks."""
        for _, tasks in self.deques:
            if tasks and not tasks[0].pending:
                return tasks[0]
        return None if self.strict else self._first_ready()

    def take(self) -> Task | None:
        """Take the task to start next; only the worker of the lane does."""
        for _, tasks in self.deques:
            if tasks and not tasks[0].pending:
                return tasks.popleft()
        found = None if self.strict else self._first_ready()
        if found is not None:
            for _, tasks in self.deques:
                if found in tasks:
                    tasks.remove(found)
        return found

    def _first_ready(self) -> Task | None:
        for _, tasks in self.deques:
            for task in list(tasks):
                if not task.pending:
                    return task
        return None


class Pool(PriorityQueue):
    """The tasks that any worker of a device may run, started when they are ready."""

    __slots__ = ()

    def add(self, task: Task) -> None:
        """Take in a task that has just been linked; it is put in order when it becomes ready."""
        if not task.pending:
            self.now_ready(task)

    def now_ready(self, task: Task) -> None:
        """Put a task that waits for nothing any more in order, and wake a worker for it."""
        self.insert(task)
        if self.sleepers:
            self.wake()

    def head(self) -> Task | None:
        """Look at the task that would be taken next; another worker may take it first."""
        for _, tasks in self.deques:
            try:
                return tasks[0]
            except IndexError:
                continue
        return None

    def take(self) -> Task | None:
        """Take the task to start next; every worker of the device may."""
        for _, tasks in self.deques:
            try:
                return tasks.popleft()
            except IndexError:
                continue
        return None


def choose(lane: Lane, pool: Pool) -> Task | None:
    """Take the next task of a worker: from its lane or its device's pool, by priority and then by age."""
    own = lane.head()
    shared = pool.head()
    if shared is None:
        return None if own is None else lane.take()
    if own is None or _before(shared, own):
        taken = pool.take()
        if taken is not None:
            return taken
    return lane.take()


def _before(one: Task, other: Task) -> bool:
    return (-one.placement.priority, one.number) < (-other.placement.priority, other.number)
