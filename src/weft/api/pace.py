"""Settle by the clock whether calls run by a program or by Python: both are timed on calls as they come.

A path has to be entered and left at each decision: on a few numbers that takes longer than the operators that it saves.
A step of many sizes computes sums over what lies beyond a size. So some of the calls that come are timed: a few by
programs, as many by Python, of which the better half counts. Where programs are slower Python runs the calls from then
on, until ever more of them have gone by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter, thread_time
from typing import Any
from weakref import WeakKeyDictionary

import torch

from weft.devices import cpu_count
from weft.trace.signature import Key

SAMPLES = 8  # of each way, or
FEWEST_SAMPLES = 3  # where one way takes
CLEARLY = 1.25  # times as long, and longer, as the other
WARM = 8  # calls by programs, before any is timed: what is traced and bound meanwhile
SLOWER = 1.0  # times as long as Python a program may take
WITH_GRADIENTS = 1.6  # the same where a backward follows, which is one program
FEWEST_BY_PYTHON = 2_000  # calls, until both are timed again; each time that Python was right ten times as many
MOST_BY_PYTHON = 2_000_000


class Pace:
    """The pace of calls that are alike; any thread may call."""

    def __init__(self, *, with_gradients: bool, warm: int = WARM) -> None:
        self._first_warm = warm
        self._limit = WITH_GRADIENTS if with_gradients else SLOWER
        self._lock = Lock()  # nothing is called while it is held
        self._clock = _clock()
        self._next_by_python = FEWEST_BY_PYTHON
        self.by_python = 0  # calls that Python still runs without a look at the clock
        self._begin()

    def _begin(self) -> None:
        self._warm = self._first_warm
        self._is_settled = False
        self._programs: list[float] = []
        self._python: list[float] = []

    @property
    def is_settled(self) -> bool:
        """Whether programs have turned out to be faster."""
        return self._is_settled and not self.by_python

    def is_for_python(self) -> bool:
        """Whether Python is to run this call: as it is faster, or to time it."""
        if self.by_python > 0:
            self.by_python -= 1
            if self.by_python == 0:
                self._begin()
            return True
        return not (self._warm or self._is_settled) and len(self._python) < len(self._programs)

    @contextmanager
    def timed(self, *, by_python: bool, work: float = 1.0) -> Iterator[None]:
        """Time a call that one of both runs; `work` is what it has to compute, where calls differ in that."""
        begin = self._clock()
        yield
        seconds = (self._clock() - begin) / work
        with self._lock:
            if self.by_python > 0 or self.is_settled:
                return
            if by_python:
                self._python.append(seconds)
            elif self._warm:
                self._warm -= 1
            elif len(self._programs) < SAMPLES:
                self._programs.append(seconds)
            if min(len(self._python), len(self._programs)) >= SAMPLES or self._is_clear():
                self._settle()

    def _is_clear(self) -> bool:
        """Whether a few calls leave no doubt: all of one way took much longer than any of the other."""
        if min(len(self._python), len(self._programs)) < FEWEST_SAMPLES:
            return False
        ways = (self._programs, self._python)
        return any(min(one) > CLEARLY * self._limit * max(other) for one, other in (ways, reversed(ways)))

    def _settle(self) -> None:
        self._is_settled = True
        count = min(len(self._python), len(self._programs)) // 2
        programs, python = (sum(sorted(times)[:count]) for times in (self._programs, self._python))
        if programs > self._limit * python:
            self.by_python = self._next_by_python
            self._next_by_python = min(10 * self._next_by_python, MOST_BY_PYTHON)


def _clock() -> Callable[[], float]:
    """The processor's time where one thread computes all: other processes lengthen the clock's."""
    return thread_time if cpu_count() == 1 and torch.get_num_threads() == 1 else perf_counter


class Paces:
    """The pace of each signature whose calls values decide in."""

    def __init__(self) -> None:
        self._of_key: dict[Key, Pace] = {}
        self._of_path: WeakKeyDictionary[Any, Pace] = WeakKeyDictionary()

    def of(self, key: Key, path: Any) -> Pace:
        """The pace of a signature, one of whose paths this is."""
        pace = self._of_path.get(path)
        if pace is None:
            pace = self._of_key.setdefault(key, Pace(with_gradients=bool(key[2][0])))
            self._of_path[path] = pace
        return pace

    def of_signature(self, key: Key) -> Pace | None:
        """The pace of a signature, where it has one."""
        return self._of_key.get(key)

    def get(self, path: Any) -> Pace | None:
        """The pace of the signature of a path, where it has one."""
        return self._of_path.get(path)
