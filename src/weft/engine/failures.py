"""A task that fails -> the variables it poisons, and the error for whoever waits.

A failing task poisons what it writes. A task that reads a poisoned variable is skipped and poisons what it writes
with the same failure; one that overwrites a variable without reading it heals it. Which failure a wait raises is
decided by the order of pushes, not by which worker was faster, so a program fails the same way every time.
"""

import sys
import traceback
import weakref
from collections.abc import Iterable, Iterator
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


class PartialFailure(Exception):  # noqa: N818  # what a task raises to say more of an error, and no user ever sees
    """Raised by a task that did several things, of which one failed: only these variables are poisoned.

    `title` and `where` are those of the thing that failed, in the place of the task's own.
    """

    def __init__(self, error: BaseException, variables: Iterable[Var], title: str, where: str) -> None:
        super().__init__(title)
        self.error = error
        self.variables = tuple(variables)
        self.title = title
        self.where = where


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
                links.append(link.error)
            yield link


class Failure:
    """One task that failed: its error, its place, and the variables that are poisoned by it."""

    __slots__ = ("_poisoned", "error", "inherited", "number", "reported", "title", "traceback", "where")

    def __init__(self, error: BaseException, task: Task) -> None:
        self.error = error
        # Raising an exception again lengthens its traceback: the original is kept apart, without the engine's frame.
        self.traceback: TracebackType | None = error.__traceback__ and error.__traceback__.tb_next
        self.number = task.number
        self.title = task.title()
        self.where = task.where()
        self.reported = False
        self.inherited = False  # of a task that only the parent of this process runs: no business of `waitall`
        # By identity, and not a WeakSet: going through that one fails if a worker adds to it meanwhile.
        self._poisoned: dict[int, weakref.ref[Var]] = {}

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
        self.known: dict[int, Failure] = {}
        self.closed = False  # after `drop_what_is_queued`, no task may start
        self.failed = 0
        self.skipped = 0
        self._dropped: Failure | None = None

    def record(self, task: Task, error: BaseException) -> Failure:
        """Remember that a task failed, and poison what it writes."""
        let_go_of_values(error)
        if isinstance(error, PartialFailure):
            failure = Failure(error.error, task)
            failure.title, failure.where = error.title, error.where
            self.heal(variable for variable in task.writes if variable not in error.variables)
            poisoned = error.variables
        else:
            failure, poisoned = Failure(error, task), task.writes
        self.known[failure.number] = failure
        self.failed += 1
        self.poison(poisoned, failure)
        return failure

    def skips(self, task: Task) -> bool:
        """Tell whether a task must not run; if so, what it writes is poisoned like what it reads."""
        failure = self._dropped_with(task) if self.closed else self.first_of(task.reads)
        if failure is None:
            return False
        self.skipped += 1
        self.poison(task.writes, failure)
        return True

    def heal(self, variables: Iterable[Var]) -> None:
        """Let variables that were written anew forget a failure."""
        for variable in variables:
            failure = variable.failure
            if failure is not None:
                failure.discard(variable)
                variable.failure = None
                self._forget_if_told_and_harmless(cast("Failure", failure))

    def first_of(self, variables: Iterable[Var]) -> Failure | None:
        """Find the earliest pushed failure that poisons one of these variables."""
        found = {cast("Failure", variable.failure) for variable in variables if variable.failure is not None}
        return min(found, key=lambda failure: failure.number, default=None)

    def raise_for(self, variables: Iterable[Var], rule: str | None = None) -> None:
        """Raise what a wait for these variables must raise, if anything."""
        failure = self.first_of(variables)
        if failure is not None:
            self.raise_for_one(failure, rule)

    def raise_for_one(self, failure: Failure, rule: str | None = None) -> NoReturn:
        """Raise a failure, and treat it as told."""
        self._tell([failure], rule)
        raise failure.exception()

    def poison(self, variables: Iterable[Var], failure: Failure) -> None:
        """Make variables raise this failure, in the place of what they held."""
        for variable in variables:
            if variable.only_orders:
                continue
            if variable.failure is not None:
                variable.failure.discard(variable)
            variable.failure = failure
            failure.add(variable)

    def raise_first(self, rule: str | None = None) -> None:
        """Raise the earliest failure of all, naming the others, if there is any: what `waitall` does."""
        for failure in self.known.copy().values():
            self._forget_if_told_and_harmless(failure)  # its variables may have been collected as garbage
        failures = sorted(self._to_tell(), key=lambda failure: failure.number)
        if failures:
            self._tell(failures, rule)
            raise failures[0].exception(others=failures[1:])

    def _to_tell(self) -> list[Failure]:
        return [failure for failure in self.known.copy().values() if not failure.inherited]

    def print_untold(self) -> None:
        """Print, when the engine ends, each error that no wait has raised."""
        for failure in sorted(self.known.copy().values(), key=lambda failure: failure.number):
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
                self.known.pop(failure.number, None)

    def _forget_if_told_and_harmless(self, failure: Failure) -> None:
        if failure.reported and not failure.poisoned():
            self.known.pop(failure.number, None)


def execute(task: Task, failures: Failures) -> None:
    """Run one task, or skip it, and bring the failures up to date; never raises."""
    if (failures.known or failures.closed) and failures.skips(task):
        return
    call = task.call
    assert call is not None, "a task that is not retired has its callable"
    try:
        call()
    except BaseException as error:  # noqa: BLE001  # whatever ends a task is told to whoever waits for what it writes
        failures.record(task, error)
        del task, call  # the frames of the error lead to this one: it, too, lets go of what the task holds
        return
    if failures.known:
        failures.heal(task.writes)
