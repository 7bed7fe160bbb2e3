"""Go on by another path where values have decided otherwise: by one that is known, else by one that is traced now.

The clock settles between paths and Python, and between Python and programs that call PyTorch's operators alone, whose
bits are the same: to enter such a program may take longer than what it spares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from weft.api.pace import Paces
from weft.api.rare_calls import RareCalls, RefusedCalls
from weft.config import config
from weft.guards.entry import MISSED
from weft.guards.guarded import Guarded
from weft.guards.known_calls import KnownCalls
from weft.guards.paths_entry import PathsEntry, PathsOfCalls, Strayed
from weft.runtime.path_graph import FAILED, OtherOutcome, PathGraph
from weft.trace.signature import Key

MOST_REMEMBERED = 256
MOST_PATHS = 64  # of one signature
MOST_STRAYS = 64  # calls, from which on they may be too many


class RunsPaths(Protocol):
    """What has paths: a hybridized module or function."""

    refused: RefusedCalls
    trains: bool
    _known_calls: KnownCalls

    @property
    def programs(self) -> Mapping[Key, Any]:
        """The paths of each signature."""

    @property
    def rare(self) -> RareCalls:
        """What calls have cost that Python ran."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """What a thread holds that traces."""

    def flat_call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Flatten the arguments of a call."""

    def _key_of(self, call: Any) -> Key: ...

    def _run(self, found: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], leaves: list[Any]) -> Any: ...

    def _trace(self, call: Any, *, always: bool, is_new: bool = False) -> Any: ...

    def _by_python(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any: ...


class NextPaths:
    """By path, decision and outcome: which path was right; any thread may ask."""

    def __init__(self) -> None:
        self._found: dict[tuple[PathGraph, int, Any], Guarded[Any]] = {}
        self._paces = Paces()
        self._of_calls: dict[Key, PathsOfCalls] = {}
        self._strays = 0  # calls that no path takes, of late more than calls that another path takes

    def note(self, owner: RunsPaths, key: Key, path: Guarded[Any]) -> None:
        """Note a path of a signature; callers hold the owner's lock."""
        found = self._of_calls.get(key)
        if found is None:
            found = PathsOfCalls(key, partial(_deserves, owner, self.stray, key))
            self._of_calls[key] = found
        path.paths = found
        found.add(path)

    def stray(self, key: Key) -> bool:
        """Note a call that no path takes, where there are to be no more; whether most calls are such calls."""
        self._strays += 1
        paths = self._of_calls.get(key)
        return self._strays >= MOST_STRAYS and (paths is None or self._strays > paths.taken_by_all())

    def is_timed(self, found: Guarded[Any]) -> bool:
        """Whether the clock settles who runs the calls of a program."""
        return bool(found.outcomes) or (found.program.is_of_operators and config().clock == "on")

    def is_left_to_python(self, key: Key) -> bool:
        """Whether Python runs a call of a signature, as programs have turned out to be slower: no guard is asked."""
        pace = self._paces.of_signature(key)
        return pace is not None and pace.by_python > 1 and pace.is_for_python()

    def is_steady(self, found: Guarded[Any]) -> bool:
        """Whether an entry may lead calls to a program: where the clock settles that, past it alone."""
        if not self.is_timed(found):
            return True
        pace = self._paces.get(found)
        return pace is not None and pace.is_settled

    def run(self, owner: RunsPaths, found: Guarded[Any], call: Any, key: Key) -> Any:
        """Run a call by a program, or paths the first of which it is, or by Python where that is faster."""
        pace = self._paces.of(key, found)
        by_python = pace.is_for_python()
        if pace.by_python:
            owner.refused.came_again(alone=len(owner.programs) == 1)
        try:
            with pace.timed(by_python=by_python):
                if by_python:
                    return owner._by_python(call.arguments, call.keywords)
                return self._by_program(owner, found, call, settled=pace.is_settled)
        except OtherOutcome as met:  # which is not timed: a way that comes again will be one that native code knows
            other = met
        return self.go_on(owner, other, call.arguments, call.keywords)

    def _by_program(self, owner: RunsPaths, found: Guarded[Any], call: Any, *, settled: bool) -> Any:
        """Run a call by a program or by paths; OtherOutcome where native code has left them."""
        # An entry gives what a program gives: a step hands its gradients out.
        is_led = found.paths is not None and not owner.trains
        entry = found.paths.known(call.arguments, call.keywords) if is_led else None
        result = MISSED if entry is None else entry.entry(*call.arguments, **call.keywords)
        if result is not MISSED:
            if settled:
                owner._known_calls.add(found, call.arguments, call.keywords)
            return result
        try:
            return owner._run(found, call.arguments, call.keywords, call.leaves)
        except OtherOutcome as met:
            if entry is not None:
                raise
            other = met
        return self.go_on(owner, other, call.arguments, call.keywords)

    def go_on(self, owner: RunsPaths, other: OtherOutcome, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run a call whose values decided otherwise than the path says that it was to take."""
        if isinstance(other, Strayed):
            with owner.rare.running(other.paths.key):
                return owner._by_python(arguments, keywords)
        met = [other]
        result = self._by_entry(met, owner._known_calls, arguments, keywords)
        if result is not MISSED:
            return result
        call = owner.flat_call(arguments, keywords)
        key = owner._key_of(call)
        while met[-1].outcome is not FAILED:
            known = list(owner.programs.get(key, ()))
            result = self._by_known(owner, met, known, call)
            if result is not MISSED:
                return result
            if list(owner.programs.get(key, ())) == known:  # else another thread has made one meanwhile
                break
        met[-1].put_back()
        if met[-1].outcome is FAILED:
            return owner._by_python(arguments, keywords)
        return _by_new_path(owner, call, key)

    def _by_entry(self, met: list[OtherOutcome], known: KnownCalls, arguments: Any, keywords: Any) -> Any:
        """Run the path that was right the last time, by its native entry; MISSED where the call has to be looked at."""
        tried: set[Guarded[Any]] = set()
        while True:
            other = met[-1]
            found = self._found.get((other.path, other.number, other.outcome))
            if found is None or found.known is None or found in tried or isinstance(found.known, PathsEntry):
                return MISSED
            tried.add(found)
            try:
                with other.handed_over():
                    result = found.known.entry(*arguments, **keywords)
            except OtherOutcome as another:
                met.append(another)
                continue
            if result is not MISSED:
                self._strays = max(self._strays - 1, 0)
                known.add(found, arguments, keywords)
            return result

    def _by_known(self, owner: RunsPaths, met: list[OtherOutcome], known: list[Guarded[Any]], call: Any) -> Any:
        """Run the path that is right; MISSED where none is, or an operator has raised."""
        waiting = [found for found in known if found.outcomes]
        while met[-1].outcome is not FAILED:
            failed = met[-1].failed
            waiting = [found for found in waiting if found.outcomes[: len(failed)] != failed]
            with owner.lock:  # a thread that traces has stand-ins in places that are compared
                found = next((found for found in waiting if found.holds(call.leaves)), None)
            if found is None:
                break
            try:
                with met[-1].handed_over():
                    result = owner._run(found, call.arguments, call.keywords, call.leaves)
            except OtherOutcome as another:
                met.append(another)
                continue
            self._note(met, found)
            return result
        return MISSED

    def _note(self, met: list[OtherOutcome], found: Guarded[Any]) -> None:
        if len(self._found) >= MOST_REMEMBERED:
            self._found.clear()
        self._found.update({(other.path, other.number, other.outcome): found for other in met})


def _deserves(owner: RunsPaths, strays: Callable[[Key], bool], key: Key) -> bool:
    """Whether a call of a signature that no path takes is worth a path now, or says that there are too many."""
    count = len(owner.programs.get(key, ()))
    if owner.refused.error(key) is not None:
        return False
    return owner.rare.deserves_path(key, count) if count < MOST_PATHS else strays(key)


def _by_new_path(owner: RunsPaths, call: Any, key: Key) -> Any:
    """Trace the path that a call takes, if it is worth a program, and run it."""
    found = owner._trace(call, always=False, is_new=True)
    if found is not None:
        try:
            return owner._run(found, call.arguments, call.keywords, call.leaves)
        except OtherOutcome as another:  # a rounding has decided: the trace computes by operators
            last = another
        last.put_back()
    with owner.rare.running(key):
        return owner._by_python(call.arguments, call.keywords)
