"""Decide when a signature that comes again is worth a program: once it has cost as much imperatively.

Making a program takes as long as dozens of imperative calls. Of signatures that differ in nothing but sizes the first
few get theirs at once (`WEFT_PROGRAMS_AT_ONCE`): most objects have no more. Beyond them most come once or twice (texts
of every length, one token more at each call), and each runs imperatively until that has taken a good part of the time
that a program takes to be made. Whatever comes, all of it then takes at most one and a half times as long as the better
of both ways would have, known beforehand (the ski rental problem). Where very many programs were made, later ones have
to be worth ever more.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter

from weft.config import config
from weft.trace.signature import Key, without_sizes

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


class RareCalls:
    """Count what signatures cost that came without getting a program; any thread may."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[Key, float] = OrderedDict()
        self._lock = Lock()  # nothing is called while it is held
        self._programs: Counter[Key] = Counter()  # that were made, by their signature without sizes
        self._first: Counter[Key] = Counter()
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

    def deserves(self, key: Key) -> bool:
        """Whether a signature that has come once more gets a program now."""
        if self._worth is not None:
            return self._worth
        if self._programs[without_sizes(key)] < config().programs_at_once:
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

    def is_always_first(self, key: Key) -> bool:
        """Note a call that Python has to make, for functions to remember it; whether there are ever more such calls."""
        self._first[without_sizes(key)] += 1
        return self._first[without_sizes(key)] > MOST_FIRST

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
            self._programs[without_sizes(key)] += not is_path
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
