"""Order tasks by the variables that they read and write.

A task goes through four states, told by two fields: pushed (`pending` is UNLINKED), linked (`pending` counts the
tasks it still waits for), done (`done` is True: it ran, failed or was skipped), retired (also `call` is None: every
task that waited for it knows). Only the thread that runs a task sets `done`; only the holder of the engine's link
lock changes `pending`, `successors`, and a variable's `writer` and `readers`.

The order (`link`): writes to one variable happen in the order pushed; a read sees the last write pushed before it, and
is finished before the next write starts; reads between two writes may run together. A task that names a variable as
both read and written changes it in place. Every wait points from a later push to an earlier one, so there is no cycle.
`link` and `retire` are without a lock: the caller holds the engine's link lock, or is alone.
"""

import ctypes
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from weft.errors import ExecutionError, UsageError, source_line

if TYPE_CHECKING:
    from _thread import LockType

UNLINKED = -1
FEWEST_READERS_TO_PRUNE = 32
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # a CFUNCTYPE releases the interpreter's lock


class Poison(Protocol):
    """What a variable keeps of a failure: only `failures.py` looks inside."""

    def discard(self, variable: "Var") -> None:
        """Note that it poisons a variable no more."""


class Sleeper(Protocol):
    """Whoever sleeps while a queue has nothing to do: a worker's thread."""

    def wake(self) -> bool:
        """Wake it if it sleeps; tell whether this call did."""


class TaskQueue(ABC):
    """Where tasks wait for a worker: a lane, the pool of all lanes of one device, or what a serial task has pushed."""

    __slots__ = ("abandon", "name", "sleepers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sleepers: dict[Sleeper, None] = {}  # those that take tasks from here and have nothing to do
        # Set in a child process for the queues of its parent, whose tasks will never run here: how to give one up.
        self.abandon: Callable[[Task], None] | None = None

    @abstractmethod
    def add(self, task: "Task") -> None:
        """Take in a task that has just been linked."""

    @abstractmethod
    def now_ready(self, task: "Task") -> None:
        """Learn that a task taken in earlier waits for nothing any more."""

    def wake(self) -> None:
        """Wake one sleeper, if there is one."""
        # Only the worker itself leaves the list: it may be awake, and asleep again, before we could cross it off.
        for sleeper in reversed(list(self.sleepers)):  # the last to fall asleep has the warmest caches
            if sleeper.wake():
                return


class Placement(NamedTuple):
    """Where a task runs, and what is known of it beforehand; give it to `push` in the place of a device's name."""

    device: str = "cpu"
    priority: int = 0  # among tasks that could start now, the highest goes first
    bytes: int = 0  # memory held from the push until the task is done
    where: str | None = None  # the user's line, where it is not the line that pushes
    bounded: bool = True  # whether the push waits for room, past the limit; a deletion does not, as it makes room


DEFAULT_PLACEMENT = Placement()


class Var:
    """One thing that tasks read and write: the engine orders the tasks, and never looks at the thing.

    One that only orders stands for no thing: what fails poisons nothing through it.
    """

    __slots__ = (
        "__weakref__", "crowd", "deleted", "failure", "kept", "latest", "name", "only_orders", "readers", "writer",
    )  # fmt: skip

    def __init__(self, name: str = "", *, only_orders: bool = False) -> None:
        self.name = name
        self.only_orders = only_orders
        self.latest: Task | None = None  # the last task pushed that writes it
        self.writer: Task | None = None  # the last task linked that writes it
        self.readers: list[Task] = []  # the tasks linked since then that read it
        self.crowd = FEWEST_READERS_TO_PRUNE  # so many readers are worth a look for those that are done
        self.failure: Poison | None = None
        self.kept = False  # poisoned by a change that did not take place: the thing is as it was before
        self.deleted = False

    def __repr__(self) -> str:
        return f"Var({self.name!r})" if self.name else f"Var(at {id(self):#x})"


class Task:
    """One call, with the variables it reads and writes."""

    __slots__ = (
        "call",
        "code",
        "done",
        "instruction",
        "lane",
        "name",
        "number",
        "pending",
        "placement",
        "reads",
        "successors",
        "waiters",
        "writes",
    )

    def __init__(
        self, call: Callable[[], object], reads: tuple[Var, ...], writes: tuple[Var, ...], lane: TaskQueue
    ) -> None:
        self.call: Callable[[], object] | None = call
        self.reads = reads
        self.writes = writes
        self.lane = lane
        self.done = False
        self.pending = UNLINKED
        self.successors: list[Task] | None = None
        self.waiters: list[LockType] | None = None
        self.number = 0
        self.placement = DEFAULT_PLACEMENT
        self.name = ""
        # The place of the push. A frame would keep the user's variables alive, and its line number takes time to
        # work out: the code and the instruction are two loads.
        self.code: CodeType | None = None
        self.instruction = 0

    def title(self) -> str:
        """Give the name the task was pushed under, else its callable's."""
        if self.name:
            return self.name
        call = self.call
        return getattr(call, "__qualname__", None) or getattr(call, "__name__", None) or type(call).__name__

    def where(self) -> str | None:
        """Give the user's line that pushed the task, with its text."""
        if self.placement.where is not None:
            return self.placement.where
        if self.code is None:
            return None
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end and line is not None:
                return source_line(self.code.co_filename, line)
        return source_line(self.code.co_filename, self.code.co_firstlineno)

    def __repr__(self) -> str:
        return f"<task {self.number} {self.title()}>"


def circular_wait(writer: Task) -> UsageError:
    """Say that a task waits for what can only be done after it."""
    return UsageError(
        f"a task waits for {writer.title()}, which can only run after it",
        where=writer.where(),
        why="both would wait for ever",
        fix="wait outside the task, or name what it needs in the reads of its push",
    )


class Barrier:
    """A place in the order of pushes: it is passed when every task pushed before it is done."""

    __slots__ = ("gate", "number", "remaining")

    def __init__(self, gate: "LockType") -> None:
        self.gate = gate
        self.number = 0
        self.remaining = 0


Event = Task | Barrier
Inbox = deque[Event]


def link(task: Task) -> None:
    """Make a newly pushed task wait for those it must come after; `task.pending` becomes their number.

    A task may be counted twice for one predecessor: it is then also told twice that it is done.
    """
    pending = 0
    for variable in task.reads:
        writer = variable.writer
        if writer is not None and not writer.done:
            pending += _follow(writer, task)
        readers = variable.readers
        readers.append(task)
        if len(readers) > variable.crowd:
            forget_done_readers(variable)
    for variable in task.writes:
        readers = variable.readers
        if readers:
            for reader in readers:
                if not reader.done and reader is not task:
                    pending += _follow(reader, task)
            variable.readers = []
        else:
            # Where there were readers they waited for this writer already, and so does the task through them.
            writer = variable.writer
            if writer is not None and not writer.done and writer is not task:
                pending += _follow(writer, task)
        variable.writer = task
    task.pending = pending


def _follow(earlier: Task, later: Task) -> int:
    abandon = earlier.lane.abandon
    if abandon is not None:
        abandon(earlier)
        return 0
    # `done` may become True at any moment, but `earlier` is retired under the lock we hold, hence after this.
    if earlier.successors is None:
        earlier.successors = [later]
    else:
        earlier.successors.append(later)
    return 1


def forget_done_readers(variable: Var) -> None:
    """Drop readers that are done, so that a variable read for ever and never written keeps few of them."""
    variable.readers = [reader for reader in variable.readers if not reader.done]
    # Doubling the mark makes the cost of looking a constant for each reader, however many are in flight.
    variable.crowd = max(FEWEST_READERS_TO_PRUNE, 2 * len(variable.readers))


def retire(task: Task) -> None:
    """Tell those that wait for a task that it is done, and let go of everything it held."""
    successors = task.successors
    if successors is not None:
        for later in successors:
            later.pending -= 1
            if not later.pending:
                later.lane.now_ready(later)
        task.successors = None
    # Variables keep their last writer: it must keep nothing, neither the callable's memory nor other variables.
    task.call = None
    task.reads = task.writes = ()


def predecessors(task: Task) -> set[Task]:
    """Find the tasks, done or not, whose results or variables a task is about to be linked behind."""
    found = {variable.writer for variable in (*task.reads, *task.writes)}
    for variable in task.writes:
        found.update(variable.readers)
    found.discard(task)
    return {earlier for earlier in found if earlier is not None}


class NativeTask:
    """A call of `int function(void *argument)` in machine code; anything but 0 is a failure.

    `keep` is held until the task is done: the owner of the code and of what the argument points to.
    """

    __slots__ = ("__name__", "address", "argument", "keep")

    def __init__(self, address: int, argument: int = 0, keep: object = None, name: str = "native task") -> None:
        self.address = address
        self.argument = argument
        self.keep = keep
        self.__name__ = name

    def __call__(self) -> None:
        """Call the function; raise if it gives anything but 0."""
        # SAFETY: the address is that of a function of this signature, and it and the argument stay valid while the
        # task is queued and runs: whoever made the task guarantees it, by `keep` where Python owns them.
        status = SIGNATURE(self.address)(self.argument)
        if status:
            raise ExecutionError(f"{self.__name__} returned the error code {status}")
