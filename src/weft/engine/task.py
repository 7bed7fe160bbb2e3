"""What is run, as `Task`, ordered by what it reads and writes, as `Var`.

A task goes through four states, told by two fields: pushed (`pending` is UNLINKED), linked (`pending` counts the
tasks it still waits for), done (`done` is True: it ran, failed or was skipped), retired (also `call` is None: every
task that waited for it knows). Only the thread that runs a task sets `done`; only the holder of the engine's link
lock changes `pending`, `successors`, and a variable's `writer` and `readers`.
"""

from collections import deque
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from weft.errors import source_line

if TYPE_CHECKING:
    from _thread import LockType

UNLINKED = -1
FEWEST_READERS_TO_PRUNE = 32


class Sharable(Protocol):
    """What a variable keeps of a failure: only `failures.py` looks inside."""

    def discard(self, variable: "Var") -> None:
        """Note that it poisons a variable no more."""


class Worker(Protocol):
    """A thread that runs tasks: only `workers.py` knows more of it."""

    def wake(self) -> bool:
        """Wake it if it sleeps; tell whether this call did."""


class Queue(Protocol):
    """Where tasks wait for a worker: a lane, or the pool of all lanes of one device."""

    name: str
    sleepers: "dict[Worker, None]"  # the workers that take tasks from here and have nothing to do
    # Set in a child process for the queues of its parent, whose tasks will never run here: how to give one up.
    abandon: "Callable[[Task], None] | None"

    def add(self, task: "Task") -> None:
        """Take in a task that has just been linked."""

    def now_ready(self, task: "Task") -> None:
        """Learn that a task taken in earlier waits for nothing any more."""

    def wake(self) -> None:
        """Wake one worker that has nothing to do, if there is one."""


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
        self.failure: Sharable | None = None
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
        self, call: Callable[[], object], reads: tuple[Var, ...], writes: tuple[Var, ...], lane: Queue
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


class Barrier:
    """A place in the order of pushes: it is passed when every task pushed before it is done."""

    __slots__ = ("gate", "number", "remaining")

    def __init__(self, gate: "LockType") -> None:
        self.gate = gate
        self.number = 0
        self.remaining = 0


Event = Task | Barrier
Inbox = deque[Event]
