"""Decide which calls and steps are worth a program: what came often enough, and is not known to be refused.

Making a program takes as long as dozens of imperative calls. Of signatures that differ in nothing but sizes, and in
numbers that are written into programs, the first few get theirs at once (`WEFT_PROGRAMS_AT_ONCE`): most objects have
no more. Beyond them most come once or twice (texts of every length, one token more at each call, times of a diffusion),
and each runs imperatively until that has taken a good part of the time that a program takes to be made. Whatever comes,
all of it then takes at most one and a half times as long as the better of both ways would have, known beforehand (the
ski rental problem). Where very many programs were made, later ones have to be worth ever more.

Such a call is run by Python. To see that it is one of these takes longer than many an operator: where all calls are,
ever more of them go by unseen between two that are looked at, which see whether others have come.

Eager's operators compute a step of large tensors nearly as fast as a program does, which takes seconds to be made. So
Python makes the first step, the second one of the same sizes gets a program, and where sizes vary one program for many
of them is made once Python has taken so long that it would have paid for itself. What it would have saved is estimated
by the nodes of autograd's graph, each of which costs Python so much whatever its size. Seconds are those of the thread:
other work on the machine must not make a step look as if it were worth more.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from time import perf_counter, thread_time
from typing import Any

from weft.config import config
from weft.errors import WeftError
from weft.trace.signature import Key, number_of, without_sizes

MOST_UNSEEN = 256  # calls between two that are looked at
MOST_REFUSED = 64  # signatures


class RefusedCalls:
    """The signatures of one object that run by Python, each with the error that says why; any thread may ask."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._errors: OrderedDict[Key, WeftError] = OrderedDict()
        self.unseen = 0  # calls that are still to go by
        self._next_unseen = 1
        self.training: Any = None  # of the root, when that was decided

    def __bool__(self) -> bool:
        return bool(self._errors)

    def errors(self) -> list[WeftError]:
        """Why there is no program, each reason once."""
        return list({str(error): error for error in self._errors.values()}.values())

    def came_again(self, *, alone: bool) -> None:
        """Note a call of such a signature; where there are no others, `alone`, those that follow go by unseen."""
        if not alone:
            return
        self.training = getattr(self.root, "training", None)
        self.unseen, self._next_unseen = self._next_unseen, min(2 * self._next_unseen, MOST_UNSEEN)

    def add(self, key: Key, error: WeftError) -> None:
        """Note that there is no program for calls of this signature, whatever their sizes."""
        error.__cause__ = error.__context__ = None  # frames hold tensors
        self._errors[self._place(key)] = error.with_traceback(None)
        self._next_unseen = 1
        if len(self._errors) > MOST_REFUSED:
            self._errors.popitem(last=False)

    def error(self, key: Key) -> WeftError | None:
        """Why there is no program for a signature; None where there may be one."""
        return self._errors.get(self._place(key)) if self._errors else None

    def _place(self, key: Key) -> Key:
        return (getattr(self.root, "training", None), without_sizes(key))


MOST_PROGRAMS = 32  # that are kept for one object
MOST_REMEMBERED = 1024  # signatures
OFTEN = 2.0  # times that time, by a program for a range of sizes, and a signature gets an exact one
WORTH = 0.5  # of the time that a program takes to be made
FIRST_GUESS = 0.3  # seconds to make a program, before one was made
PROGRAMS_TO_DOUBLE = 8
PATHS_AT_ONCE = 8  # of one signature that get a program when they come first, where one is made in less than
QUICK = 0.25  # seconds
FEW_PATHS = 2  # that do in any case
MOST_DOUBLED = 10
MOST_FIRST = 3


def _kind_of(key: Key) -> Key:
    """A signature without sizes and numbers: there may be no end of either."""
    structure, leaves, *others = without_sizes(key)
    return (structure, tuple((leaf[0],) if number_of(leaf) is not None else leaf for leaf in leaves), *others)


class RareCalls:
    """Count what signatures cost that came without getting a program; any thread may."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[Key, float] = OrderedDict()
        self._lock = Lock()  # nothing is called while it is held
        self._programs: Counter[Key] = Counter()  # that were made, by their signature without sizes
        self._first: OrderedDict[Key, int] = OrderedDict()
        self._ranges: Counter[Key] = Counter()
        self._kinds_seen: set[Key] = set()
        self._cost = FIRST_GUESS
        self.calls = 0  # that ran imperatively
        self._worth: bool | None = None  # whether all are worth a program, or none, whatever they cost

    @property
    def is_closed(self) -> bool:
        """Whether all programs have been made, and what comes now gets none."""
        return self._worth is False

    @property
    def is_preparing(self) -> bool:
        """Whether programs are made now for calls that come later."""
        return self._worth is True

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Let every signature be worth a program that comes in the block, and none that comes later."""
        self._worth = True
        try:
            yield
        finally:
            self._worth = False

    def open(self) -> None:
        """Let programs be made as calls come, as from the start."""
        self._worth = None

    def deserves(self, key: Key, *, is_of_many: bool = False) -> bool:
        """Whether a signature that has come once more gets a program now: the first one that is of many sizes does."""
        if self._worth is not None:
            return self._worth
        if is_of_many or self._programs[_kind_of(key)] < config().programs_at_once:
            return True
        doubled = max(self._programs.total() - 2 * MOST_PROGRAMS, 0) // PROGRAMS_TO_DOUBLE
        return self._seconds.get(key, 0.0) >= WORTH * self._cost * (1 << min(doubled, MOST_DOUBLED))

    def deserves_path(self, key: Key, paths: int) -> bool:
        """Whether another way through code that has so many paths gets one now: the first few do, if that is quick."""
        quick = self._cost < QUICK and paths < PATHS_AT_ONCE
        return quick or paths < FEW_PATHS or self._seconds.get(key, 0.0) >= WORTH * self._cost

    def is_often(self, key: Key) -> bool:
        """Whether a signature that a program for a range of sizes takes has come often enough for one of its own."""
        return self._worth is None and self._seconds.get(key, 0.0) > OFTEN * self._cost

    def is_first_of_kind(self, key: Key) -> bool:
        """Note a call; whether none has come before that differs from it in nothing but sizes."""
        kind = without_sizes(key)
        is_first = kind not in self._kinds_seen
        self._kinds_seen.add(kind)
        return is_first

    def is_always_first(self, key: Key) -> bool:
        """Note a call that Python has to make, for functions to remember it; whether there are ever more such calls.

        Calls of other sizes are counted apart: functions may remember something for each (masks, tables of positions).
        """
        count = self._first.pop(key, 0) + 1
        self._first[key] = count
        if len(self._first) > MOST_REMEMBERED:
            self._first.popitem(last=False)
        return count > MOST_FIRST

    def has_no_range(self, key: Key) -> bool:
        """The same of a program for many sizes, which is tried with sizes that no call has had."""
        self._ranges[without_sizes(key)] += 1
        return self._ranges[without_sizes(key)] > MOST_FIRST

    @contextmanager
    def making(self, key: Key, *, is_path: bool = False) -> Iterator[None]:
        """Time how a program is made; the fastest tells what one costs, as others may have been disturbed.

        Another path of a signature that has one does not count among the first programs.
        """
        begin = perf_counter()
        yield
        seconds = perf_counter() - begin
        with self._lock:
            self._cost = min(self._cost, seconds) if self._programs else seconds
            self._programs[_kind_of(key)] += not is_path
            self._seconds.pop(key, None)

    @contextmanager
    def running(self, key: Key, *, imperatively: bool = True, before: float = 0.0) -> Iterator[None]:
        """Time a call that runs imperatively, or by a program for a range of sizes; `before` are seconds of others."""
        begin = perf_counter() - before
        yield
        seconds = perf_counter() - begin
        with self._lock:
            self.calls += imperatively
            self._seconds[key] = self._seconds.pop(key, 0.0) + seconds
            if len(self._seconds) > MOST_REMEMBERED:
                self._seconds.popitem(last=False)


MOST_COUNTED = 4096  # signatures
SECONDS_A_NODE = 25e-6  # that Python takes beside computing, forward, backward and update
LEAST_SAVED = 0.3  # of what Python takes
MOST_SAVED = 0.75
MAKING = 0.3  # seconds to make a program for many sizes, and
MAKING_A_NODE = 0.018  # for each node, before one was made
MANY_TO_EXACT = 1.5  # times as long as an exact program such a one takes to be made
FEWEST_SHARE = 1 / 8  # of the calls of a kind that Python runs; sizes that come less often get no program of their own


@dataclass(slots=True)
class _Kind:
    """What is known of steps by Python that differ in nothing but sizes."""

    calls: int = 0
    saved: float = 0.0  # seconds that a program would have saved


class RareSteps(RareCalls):
    """Count what steps cost that Python makes; any thread may."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[Key, _Kind] = {}
        self._counts: Counter[Key] = Counter()
        self.nodes = 0  # of autograd's graph of a step
        self._making_many: float | None = None

    def one_pays(self, key: Key, *, is_made_again: bool) -> bool:
        """Whether sizes that have come once more get a program of their own now.

        The first one of a kind gets those that come most; `is_made_again`: what these have relies on something that
        has changed.
        """
        kind, count = self._kinds.get(without_sizes(key)), self._counts[key]
        if kind is None or not count:
            return False
        made = self._programs[_kind_of(key)]
        if 2 * (count + 1) > kind.calls and (is_made_again or not made) and made < config().programs_at_once:
            return True
        saved = self._saved(self._seconds.get(key, 0.0), count)
        return count >= FEWEST_SHARE * kind.calls and saved >= WORTH * self._cost

    def many_pay(self, key: Key) -> bool:
        """Whether a program for many sizes would have paid for itself by now."""
        kind = self._kinds.get(without_sizes(key))
        return kind is not None and kind.saved >= self._cost_of_many()

    def _cost_of_many(self) -> float:
        if self._making_many is not None:
            return self._making_many
        exact = MANY_TO_EXACT * self._cost if self._programs else 0.0
        return max(exact, MAKING + MAKING_A_NODE * self.nodes)

    def _saved(self, seconds: float, calls: int) -> float:
        """What a program would have saved of these seconds."""
        return min(LEAST_SAVED * seconds + calls * self.nodes * SECONDS_A_NODE, MOST_SAVED * seconds)

    @contextmanager
    def making_many(self) -> Iterator[None]:
        """Time how a program for many sizes is made."""
        begin = thread_time()
        yield
        self._making_many = thread_time() - begin

    def note(self, key: Key, seconds: float, calls: int) -> None:
        """Note calls that Python has run, the last one of these sizes."""
        with self._lock:
            if len(self._counts) >= MOST_COUNTED:
                self._counts.clear()
            self._counts[key] += 1
            kind = self._kinds.setdefault(without_sizes(key), _Kind())
            kind.calls += 1
            kind.saved += self._saved(seconds, calls)
