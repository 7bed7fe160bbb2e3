"""Poison what a failed task writes, and raise its error where somebody waits.

A failing task poisons what it writes. A task that reads a poisoned variable is skipped and poisons what it writes
with the same failure; one that overwrites a variable without reading it heals it. Which failure a wait raises is
decided by the order of pushes, not by which worker was faster, so a program fails the same way every time.

A variable whose change was skipped keeps the value from before. Poisoned it is all the same, as long as nobody knows;
`recover` heals it when somebody has been told.
"""

import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NoReturn, cast

from weft.engine.task import Task, Var
from weft.errors import ExecutionError, UsageError, WeftError

ErrorRule = Literal["every", "once"]
ERROR_RULES = {
    "every": "a poisoned variable raises at every wait",
    "once": "a failure is raised by one wait and then forgotten, as MXNet has it",
}


def check_rule(rule: str) -> ErrorRule:
    """Accept the name of an error rule, or say which there are."""
    if rule not in ERROR_RULES:
        why = "; ".join(f"{name}: {sentence}" for name, sentence in ERROR_RULES.items())
        raise UsageError(f"errors={rule!r} is no rule for errors", why=why)
    return cast("ErrorRule", rule)


@dataclass(frozen=True, slots=True, eq=False)
class Damage:
    """What one failure, new or of an earlier task, spoils of what a task writes.

    `kept` are variables that have a value all the same, as it was when the failure kept it from being changed.
    """

    cause: "BaseException | Failure"
    lost: tuple[Var, ...]
    kept: tuple[Var, ...] = ()
    title: str | None = None  # of the thing that failed, and its place, if not those of the task
    where: str | None = None
    thread: int | None = None  # whose code this was, where that is known


class PartialFailure(Exception):  # noqa: N818  # what a task raises to say more of an error, and no user ever sees
    """Raised by a task that did several things, of which some failed: only what is named here is poisoned."""

    def __init__(self, losses: Sequence[Damage]) -> None:
        super().__init__(losses[0].title)
        self.losses = tuple(losses)

    def errors(self) -> list[BaseException]:
        """The errors that are new."""
        return [loss.cause for loss in self.losses if isinstance(loss.cause, BaseException)]


def let_go_of_values(error: BaseException) -> None:
    """Empty the frames of an error: a failure that kept what it poisons alive would be raised by waits for ever."""
    for link in _linked(error):
        traceback.clear_frames(link.__traceback__)


def forget_frames(error: BaseException) -> None:
    """Forget the frames of an error that was raised on a thread of the user's: they lead to those of its callers."""
    for link in _linked(error):
        link.__traceback__ = None


def _linked(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came from."""
    links: list[BaseException | None] = [error]
    seen: set[int] = set()
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            links += (link.__cause__, link.__context__)
            if isinstance(link, PartialFailure):
                links += link.errors()
            yield link


class Failure:
    """One task that failed: its error, its place, and the variables that are poisoned by it."""

    __slots__ = (
        "_poisoned",
        "error",
        "inherited",
        "number",
        "part",
        "reported",
        "thread",
        "title",
        "traceback",
        "where",
    )

    def __init__(self, error: BaseException, task: Task, part: int = 0) -> None:
        self.error = error
        # Raising an exception again lengthens its traceback: the original is kept apart, without the engine's frame.
        self.traceback: TracebackType | None = error.__traceback__ and error.__traceback__.tb_next
        self.number = task.number
        self.part = part  # a task that does several things may fail in several ways
        self.thread: int | None = None
        self.title = task.title()
        self.where = task.where()
        self.reported = False
        self.inherited = False  # of a task that only the parent of this process runs: no business of `waitall`
        # By identity, and not a WeakSet: going through that one fails if a worker adds to it meanwhile.
        self._poisoned: dict[int, weakref.ref[Var]] = {}

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in the order of all failures: that of pushes."""
        return self.number, self.part

    def add(self, variable: Var) -> None:
        """Note that this failure poisons a variable."""
        self._poisoned[id(variable)] = weakref.ref(variable)

    def discard(self, variable: Var) -> None:
        """Note that it poisons a variable no more."""
        self._poisoned.pop(id(variable), None)

    def poisoned(self) -> list[Var]:
        """List the variables it poisons that somebody still holds."""
        variables = [reference() for reference in list(self._poisoned.values())]
        return [variable for variable in variables if variable is not None]

    def exception(self, others: Iterable["Failure"] = ()) -> ExecutionError:
        """Make the error to raise: a new one for each wait, caused by the task's own with its own traceback."""
        why = f"it raised {type(self.error).__name__}: {self.error}".rstrip(": ")
        for other in others:
            why += f"\nalso failed: the task {other.title}, pushed at {other.where}"
        raised = _error_like(type(self.error))(f"the task {self.title} failed", where=self.where, why=why)
        raised.__cause__ = self.error.with_traceback(self.traceback)
        return raised


_LIKE: dict[type[BaseException], type[ExecutionError]] = {}


def _error_like(kind: type[BaseException]) -> type[ExecutionError]:
    """The class of an ExecutionError that `except` also takes for one of a kind: it comes later, but is the same."""
    found = _LIKE.get(kind)
    return found or _LIKE.setdefault(kind, _made_like(kind))


def _made_like(kind: type[BaseException]) -> type[ExecutionError]:
    if not issubclass(kind, Exception) or issubclass(ExecutionError, kind) or issubclass(kind, WeftError):
        return ExecutionError
    inside = {
        "__module__": ExecutionError.__module__,
        "__reduce__": lambda error: (ExecutionError, (error.fact,), error.__dict__),  # pickle knows no other
    }
    try:
        found = type(ExecutionError.__name__, (ExecutionError, kind), inside)
    except TypeError:
        return ExecutionError  # objects of this kind are laid out otherwise, as those of OSError are
    return cast("type[ExecutionError]", found)


class Failures:
    """Every failure of one engine that poisons a variable, or that nobody has been told of.

    While it is empty, running a task costs one look at `known`. Workers change it while others wait and raise: each
    change is one operation on a dict or a set, and the order of tasks keeps two workers off one variable.
    """

    def __init__(self, rule: str) -> None:
        self.rule = check_rule(rule)
        self.known: dict[tuple[int, int], Failure] = {}  # by their ranks
        self.closed = False  # after `drop_what_is_queued`, no task may start
        self.failed = 0
        self.skipped = 0
        self._dropped: Failure | None = None

    def note(self, task: Task, error: BaseException) -> None:
        """Remember what a task raised."""
        if isinstance(error, PartialFailure):
            self._record_losses(task, error)
        else:
            self.record(task, error)

    def record(self, task: Task, error: BaseException) -> Failure:
        """Remember that a task failed, and poison what it writes."""
        let_go_of_values(error)
        failure = Failure(error, task)
        self.failed += 1
        self._remember(failure, task.writes, ())
        return failure

    def _record_losses(self, task: Task, error: PartialFailure) -> None:
        let_go_of_values(error)
        harmed = {variable for loss in error.losses for variable in (*loss.lost, *loss.kept)}
        self.heal(variable for variable in task.writes if variable not in harmed)
        new = len(error.errors())
        self.failed += bool(new)
        self.skipped += new < len(error.losses)
        for part, loss in enumerate(error.losses):
            if isinstance(loss.cause, Failure):
                failure = loss.cause
            else:
                failure = Failure(loss.cause, task, part)
                failure.title = loss.title or failure.title
                failure.where = loss.where or failure.where
                failure.thread = loss.thread
            self._remember(failure, loss.lost, loss.kept)

    def _remember(self, failure: Failure, lost: Iterable[Var], kept: Iterable[Var]) -> None:
        self.known[failure.rank] = failure
        self.poison(lost, failure)
        self.poison(kept, failure, kept=True)

    def skips(self, task: Task) -> bool:
        """Tell whether a task must not run; if so, what it writes is poisoned like what it reads.

        What it reads, too, it would have changed in place: that keeps its value, if it has one.
        """
        failure = self._dropped_with(task) if self.closed else self.first_of(task.reads)
        if failure is None:
            return False
        self.skipped += 1
        kept = [variable for variable in task.writes if variable in task.reads and has_value(variable)]
        self.poison([variable for variable in task.writes if variable not in kept], failure)
        self.poison(kept, failure, kept=not self.closed)
        return True

    def recover(self) -> None:
        """Let what was to be changed in place forget failures that somebody was told of: it is as it was before."""
        for failure in self.known.copy().values():
            if failure.reported:
                self.heal([variable for variable in failure.poisoned() if variable.kept])

    def heal(self, variables: Iterable[Var]) -> None:
        """Let variables that were written anew forget a failure."""
        for variable in variables:
            failure = variable.failure
            if failure is not None:
                failure.discard(variable)
                variable.failure = None
                variable.kept = False
                self._forget_if_told_and_harmless(cast("Failure", failure))

    def first_of(self, variables: Iterable[Var]) -> Failure | None:
        """Find the earliest pushed failure that poisons one of these variables."""
        found = {cast("Failure", variable.failure) for variable in variables if variable.failure is not None}
        return min(found, key=lambda failure: failure.rank, default=None)

    def raise_for(self, variables: Iterable[Var], rule: str | None = None) -> None:
        """Raise what a wait for these variables must raise, if anything."""
        failure = self.first_of(variables)
        if failure is not None:
            self.raise_for_one(failure, rule)

    def raise_for_one(self, failure: Failure, rule: str | None = None) -> NoReturn:
        """Raise a failure, and treat it as told."""
        self._tell([failure], rule)
        raise failure.exception()

    def poison(self, variables: Iterable[Var], failure: Failure, *, kept: bool = False) -> None:
        """Make variables raise this failure, in the place of what they held; `kept`: for the time being."""
        for variable in variables:
            if variable.only_orders:
                continue
            if variable.failure is not None:
                variable.failure.discard(variable)
            variable.kept = kept
            variable.failure = failure
            failure.add(variable)

    def raise_first(self, rule: str | None = None) -> None:
        """Raise the earliest failure of all, naming the others, if there is any: what `waitall` does."""
        for failure in self.known.copy().values():
            self._forget_if_told_and_harmless(failure)  # its variables may have been collected as garbage
        failures = sorted(self._to_tell(), key=lambda failure: failure.rank)
        if failures:
            self._tell(failures, rule)
            raise failures[0].exception(others=failures[1:])

    def _to_tell(self) -> list[Failure]:
        return [failure for failure in self.known.copy().values() if not failure.inherited]

    def print_untold(self) -> None:
        """Print, when the engine ends, each error that no wait has raised."""
        for failure in sorted(self.known.copy().values(), key=lambda failure: failure.rank):
            if not failure.reported:
                failure.reported = True
                print("weft: an error that nobody waited for:", file=sys.stderr)  # noqa: T201  # the last chance
                sys.excepthook(ExecutionError, failure.exception(), None)

    def drop_what_is_queued(self) -> None:
        """Make every task that has not started fail: the engine closes."""
        self.closed = True

    def _dropped_with(self, task: Task) -> Failure:
        # One failure for all dropped tasks: closing was the user's wish, so it is not printed as an unheard error.
        if self._dropped is None:
            self._dropped = self.record(task, ExecutionError("the engine was closed before this task could run"))
            self._dropped.reported = True
        return self._dropped

    def _tell(self, failures: list[Failure], rule: str | None) -> None:
        once = (self.rule if rule is None else check_rule(rule)) == "once"
        for failure in failures:
            failure.reported = True
            if once:
                self.heal(failure.poisoned())
                self.known.pop(failure.rank, None)

    def _forget_if_told_and_harmless(self, failure: Failure) -> None:
        if failure.reported and not failure.poisoned():
            self.known.pop(failure.rank, None)


def has_value(variable: Var) -> bool:
    """Tell whether a variable that was changed in place before now has a value, be it poisoned for the time being."""
    return variable.failure is None or variable.kept


def execute(task: Task, failures: Failures) -> None:
    """Run one task, or skip it, and bring the failures up to date; never raises.

    A callable with a method `among_failures` is never skipped: while there are failures that is called in its place. It
    looks itself for what is poisoned, and does what does not depend on that.
    """
    call = task.call
    assert call is not None, "a task that is not retired has its callable"
    if failures.known or failures.closed:
        if not failures.closed and hasattr(call, "among_failures"):
            call = cast("Callable[[], object]", call.among_failures)
        elif failures.skips(task):
            return
    try:
        call()
    except BaseException as error:  # noqa: BLE001  # whatever ends a task is told to whoever waits for what it writes
        failures.note(task, error)
        del task, call  # the frames of the error lead to this one: it, too, lets go of what the task holds
        return
    if failures.known:
        failures.heal(task.writes)
