"""Give every engine what its users see, whichever way it runs their tasks: variables, waits, errors, limits."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from typing_extensions import Self

from weft.engine.failures import Failures
from weft.engine.limit import Bound, InFlightLimit
from weft.engine.task import Placement, Task, TaskQueue, Var
from weft.engine.timeline import Timeline
from weft.errors import UsageError
from weft.files import check_writable
from weft.owners import Owner, owner_of


@dataclass(frozen=True)
class Statistics:
    """Counters of one engine since it began."""

    pushed: int  # tasks accepted
    done: int  # tasks that ran, failed or were skipped
    in_flight: int  # tasks pushed and not yet done
    bytes_in_flight: int  # the memory they were said to hold
    most_in_flight: int  # the largest number of tasks ever in flight; the threaded engine looks at each push
    most_bytes_in_flight: int
    failed: int  # tasks that raised
    skipped: int  # tasks not run because a variable they read was poisoned
    blocked_waits: int  # waits that found their variable unfinished
    blocked_pushes: int  # pushes that had to wait for room


class BaseEngine(ABC):
    """The rules shared by the engines: see `engine.py` for the threaded one, `serial.py`, `simulated.py`."""

    def __init__(self, errors: str = "every") -> None:
        self.failures = Failures(errors)
        self.limits = InFlightLimit()
        self.timeline: Timeline | None = None
        self.timeline_clock: Callable[[], int] = time.perf_counter_ns
        self.closed = False
        self.blocked_waits = 0
        self._random_states: dict[str, Var] = {}

    @abstractmethod
    def push(
        self,
        task: Callable[[], object],
        reads: Iterable[Var] = (),
        writes: Iterable[Var] = (),
        device: str | Placement = "cpu",
        name: str = "",
    ) -> None:
        """TaskQueue a callable that reads and writes these variables."""

    @abstractmethod
    def finish(self, variables: Iterable[Var]) -> None:
        """Block until the last write pushed to each of these variables is done, failed or not."""

    @abstractmethod
    def finish_all(self) -> None:
        """Block until every task pushed before this call is done, failed or not."""

    @abstractmethod
    def stop(self) -> None:
        """Give back what runs the tasks; nothing is queued any more."""

    def is_quiet(self) -> bool:
        """Tell whether nothing is in flight, and nothing has failed."""
        return False

    def make_room(self, size: int = 0) -> None:  # noqa: B027  # an engine that runs tasks at once has nothing in flight
        """Wait until a task of this size has room within the limit: for pushes that are not bounded themselves."""

    def wait(self, *variables: Var, errors: str | None = None) -> None:
        """Wait until variables have the values last pushed; raise the first failure that poisons one of them.

        `errors` is the engine's rule unless given: "every" raises at each wait, "once" raises and forgets.
        """
        self.finish(variables)
        if self.failures.known:
            self.failures.raise_for(variables, errors)

    def waitall(self, errors: str | None = None) -> None:
        """Wait for every task pushed before this call; raise the first failure of all, naming the others."""
        self.finish_all()
        if self.failures.known:
            self.failures.raise_first(errors)

    def ready(self, variable: Var) -> bool:
        """Tell whether a wait for this variable would return, or raise, at once."""
        writer = variable.latest
        return writer is None or writer.done

    def delete(self, variable: Var, release: Callable[[], object] | None = None) -> None:
        """End a variable: after the last task pushed that uses it, call `release`; no later task may name it."""
        # Finalizers delete, and the collector runs them anywhere, also in the middle of a wake or of another push: one
        # that waited for room there would wait for what only the code below it on the stack can bring about.
        place = Placement(bounded=False)
        self.push(release or nothing, writes=(variable,), device=place, name=f"delete {variable.name}".strip())
        variable.deleted = True

    def random_state(self, device: str = "cpu") -> Var:
        """Give the variable for a device's random numbers: tasks that draw some write it, and so keep their order.

        One that fails spoils no draw after it: a generator has a state whatever happens.
        """
        return self._random_states.setdefault(device, Var(f"random state of {device}", only_orders=True))

    def limit(self, bytes: Bound = None, tasks: Bound = None) -> None:  # noqa: A002  # the public name
        """Bound what may be in flight; past it a push waits. None leaves a bound, "default" gives the first one."""
        self.limits.change(tasks, bytes)

    def statistics(self) -> Statistics:
        """Count what the engine did so far."""
        limits = self.limits
        return Statistics(
            pushed=limits.pushed + limits.here,
            done=limits.done + limits.here,
            in_flight=limits.pushed - limits.done,
            bytes_in_flight=limits.bytes_pushed - limits.bytes_done,
            most_in_flight=limits.most_tasks,
            most_bytes_in_flight=limits.most_bytes,
            failed=self.failures.failed,
            skipped=self.failures.skipped,
            blocked_waits=self.blocked_waits,
            blocked_pushes=limits.waits,
        )

    def trace_to(self, path: str | Path, finish: Callable[[], None] | None = None) -> Timeline:
        """Record a timeline of every task from now on; closing it, or the engine, writes the file and the verdict.

        Closing it first calls `finish`, or waits for every task pushed: what is still queued belongs to it.
        """
        check_writable(Path(path), f"trace_to {path}")
        if self.timeline is not None:
            self.timeline.close()

        def settle() -> None:
            if not self.closed:
                (finish or self.finish_all)()

        self.timeline = Timeline(path, settle, on_close=self._forget_timeline, clock=self.timeline_clock)
        return self.timeline

    def close(self, finish: bool = True) -> None:
        """End the engine: finish what is queued, or drop what has not started; print errors nobody waited for."""
        if self.closed:
            return
        if not finish:
            self.failures.drop_what_is_queued()
        try:
            self.finish_all()
        except KeyboardInterrupt:
            # The user will not wait for the rest of the queue, but what runs now cannot be stopped.
            self.failures.drop_what_is_queued()
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        self.closed = True
        self.stop()
        try:
            if self.timeline is not None:
                self.timeline.close()
        finally:
            self.failures.print_untold()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # After an error in the block nobody can use what is still queued.
        self.close(finish=error is None)

    def _forget_timeline(self) -> None:
        self.timeline = None

    def make_task(
        self, call: Callable[[], object], reads: Iterable[Var], writes: Iterable[Var], lane: TaskQueue
    ) -> Task:
        """Check the arguments of a push and make its task."""
        if self.closed:
            raise UsageError("the engine is closed", why="a task can be pushed only before close()")
        if not callable(call):
            raise UsageError(f"a task must be callable, not {call!r}", fix="push(lambda: f(x), reads, writes)")
        reads, writes = tuple(reads), tuple(writes)
        for variable in reads:
            if variable.__class__ is not Var or variable.deleted:
                raise unusable(variable)
        for variable in writes:
            if variable.__class__ is not Var or variable.deleted:
                raise unusable(variable)
        return Task(call, reads, writes, lane)


def unusable(variable: object) -> UsageError:
    """Say why a task cannot read or write this."""
    if not isinstance(variable, Var):
        return UsageError(f"a task reads and writes variables, not {variable!r}", fix="name its Var")
    return UsageError(f"{variable!r} was deleted", why="no task may use a variable after delete()")


def mark_place(task: Task, frame: FrameType | None) -> None:
    """Note the line of the user that pushes a task: that of the innermost frame outside Weft itself."""
    while frame is not None:
        code = frame.f_code
        if owner_of(code.co_filename) is not Owner.WEFT:
            task.code = code
            task.instruction = frame.f_lasti
            return
        frame = frame.f_back


def nothing() -> None:
    """Do nothing: the task of a deletion that releases nothing, or of a measurement."""
