"""Remember the last few kinds of calls, each with its native entry; any thread may call and add them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from weft.guards.back_off import BackOff
from weft.guards.entry import MISSED, BoundRun, Entry, Ways, bound_run, make_entry, refuse_all
from weft.guards.guarded import Guarded
from weft.guards.known_sizes import KnownSizes
from weft.guards.likeness import NOTHING, CallItems, Likeness, likeness_of
from weft.guards.paths_entry import PathsEntry
from weft.trace.signature import can_be_free

MOST_KNOWN_CALLS = 12  # kinds of calls that may take turns: to compare with each takes a fraction of a microsecond


class SizedRun(Protocol):
    """What runs a program for a range of sizes, and gives MISSED for calls that it does not know to be in range."""

    @property
    def varying(self) -> Mapping[int, Collection[int]]:
        """Leaves of a call, and their dimensions that vary."""

    def run(self, inputs: Sequence[Any], containers: Sequence[Any] = (), known: KnownSizes | None = None) -> Any:
        """Run the program on its inputs, and let native code run calls of sizes that have become known."""


class KnownCall:
    """A kind of calls of a program, and its entry."""

    def __init__(
        self, guarded: Guarded[Any], likeness: Likeness, told: list[Any], sized: SizedRun | None = None
    ) -> None:
        self.guarded = guarded
        runner = _Runner(guarded, likeness, told, guarded.program.run if sized is None else sized.run)
        program = guarded.program
        # A program that is not native from end to end runs at once, without a look at whether it could be bound.
        is_plain = not (guarded.outcomes or guarded.numbers) and told is guarded.told
        runs, self._bound = runner.run_unbound, runner.bound
        if is_plain and sized is not None:
            known = KnownSizes(guarded, likeness, told)
            runs, self._bound = partial(sized.run, known=known), known.bound
        elif is_plain and program.may_be_bound:
            runs = runner.run
        ways = Ways(told, runs, runner.check, program.needs_containers)
        self.entry: Entry = make_entry(likeness, guarded.taken, ways, self._bound, by_sizes=sized is not None)

    @property
    def is_bound(self) -> bool:
        """Whether its calls are native from end to end."""
        return self._bound[0] is not None


class _Runner:
    """What the entry of a kind of calls does in Python; the entry holds it, and nobody holds the entry for it."""

    def __init__(
        self, guarded: Guarded[Any], likeness: Likeness, told: list[Any], run_unbound: Callable[..., Any]
    ) -> None:
        self.bound: list[Any] = [None]
        self._first_number = len(guarded.arguments) + len(guarded.slots)
        self._without_numbers = run_unbound
        self._run_inputs = self._run_with_numbers if guarded.numbers else run_unbound
        self.run_unbound = self._run_reading if guarded.reads_numbers else self._run_inputs
        self._run: BoundRun | None = None
        self._guarded, self._likeness, self._told = guarded, likeness, told
        self._attempts = BackOff()
        self._places = [likeness.leaves[leaf] for leaf in guarded.arguments]

    def run(self, inputs: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run the program, and see whether it can be bound: at some calls, ever fewer, as it is costly to do."""
        result = self._guarded.program.run(inputs, containers)
        run = self._run
        if run is not None and not run.is_current(self._told[0]):
            self._run = self.bound[0] = None  # else another thread is in it, or it refuses data
        if self._attempts.is_due():
            told = self._told[0]
            self._run = run = bound_run(self._guarded.bound(self._places), told)
            self.bound[0] = None if run is None else run.state
        return result

    def _run_with_numbers(self, inputs: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run a program that takes any numbers that are such."""
        first = self._first_number
        numbers = inputs[first : first + len(self._guarded.numbers)]
        return self._without_numbers(inputs, containers) if all(map(can_be_free, numbers)) else MISSED

    def _run_reading(self, inputs: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run a program that reads numbers, for which there is to be room."""
        return self._run_inputs(self._guarded.with_numbers_to_read(inputs), containers)

    def check(self, leaves: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run the program if its facts hold, which words do not tell."""
        inputs = self._guarded.ready(leaves) if self._likeness.is_that_of(leaves) else None
        return MISSED if inputs is None else self._run_inputs(inputs, containers)


class KnownCalls:
    """The kinds of calls, the latest first."""

    def __init__(self) -> None:
        self.entry: Entry = refuse_all  # of the latest
        self._kept: tuple[KnownCall | PathsEntry, ...] = ()

    def run(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What a call gives that is like one of those before the latest; else MISSED."""
        for known in self._kept[1:]:
            result = known.entry(*arguments, **keywords)
            if result is not MISSED:
                self._put_first(known)
                return result
        return MISSED

    def add(
        self,
        guarded: Guarded[Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        sized: SizedRun | None = None,
    ) -> None:
        """Note that a program ran that no entry led to: from now on one may."""
        shared = None if guarded.paths is None else guarded.paths.known(arguments, keywords)
        if shared is not None:
            guarded.known = shared
        elif guarded.attempts.is_due() or isinstance(guarded.known, PathsEntry):
            guarded.known = known_call(guarded, arguments, keywords, sized)
        known = guarded.known
        if known is not None:
            self._put_first(known)

    def _put_first(self, known: KnownCall | PathsEntry) -> None:
        if not self._kept or known is not self._kept[0]:
            others = (other for other in self._kept if other.guarded is not known.guarded)
            self._kept = (known, *others)[:MOST_KNOWN_CALLS]
        self.entry = known.entry


def known_call(
    guarded: Guarded[Any], arguments: Sequence[Any], keywords: Mapping[str, Any], sized: SizedRun | None = None
) -> KnownCall | None:
    """The kind of a call, if native code can tell calls like it."""
    varying = NOTHING if sized is None else sized.varying
    found = _likeness(guarded, CallItems(arguments, keywords), varying, guarded.numbers)
    return None if found is None else KnownCall(guarded, *found, sized)


def inputs_entry(guarded: Guarded[Any], arguments: Sequence[Any]) -> Entry | None:
    """An entry that gives the inputs of a program for calls like this one, and runs nothing."""
    found = None if guarded.reads_numbers else _likeness(guarded, CallItems(arguments, {}))
    if found is None:
        return None
    likeness, told = found

    def check(leaves: Sequence[Any]) -> Any:
        inputs = guarded.ready(leaves) if likeness.is_that_of(leaves) else None
        return MISSED if inputs is None else inputs

    return make_entry(likeness, guarded.taken, Ways(told, list, check), [None])


def _likeness(
    guarded: Guarded[Any],
    items: CallItems,
    varying: Mapping[int, Collection[int]] = NOTHING,
    numbers: Collection[int] = (),
) -> tuple[Likeness, list[Any]] | None:
    """What a call looks like, and the list of what words tell of facts: of nothing where Python has to look."""
    likeness = likeness_of(items, offsets=guarded.offsets_matter, varying=varying, numbers=numbers)
    if likeness is None:
        return None
    by_words = likeness.is_all_words and not guarded.may_be_own(items.things, any_size=bool(varying))
    return likeness, guarded.told if by_words else [None]
