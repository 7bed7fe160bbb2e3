"""Decide which sizes of training steps get programs: those that come most, or many once that saves what it costs.

Eager's operators compute a step of large tensors nearly as fast as a program does, which takes seconds to be made. So
Python makes the first step, the second one of the same sizes gets a program, and where sizes vary one program for many
of them is made once Python has taken so long that it would have paid for itself. What it would have saved is estimated
by the nodes of autograd's graph, each of which costs Python so much whatever its size. Seconds are those of the thread:
other work on the machine must not make a step look as if it were worth more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import thread_time

from weft.api.rare_calls import WORTH, RareCalls
from weft.config import config
from weft.trace.signature import Key, without_sizes

MOST_COUNTED = 4096  # signatures
SECONDS_A_NODE = 25e-6  # that Python takes beside computing, forward, backward and update
LEAST_SAVED = 0.1  # of what Python takes
MOST_SAVED = 0.75
MAKING = 0.3  # seconds to make a program for many sizes, and
MAKING_A_NODE = 0.035  # for each node, before one was made
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
        made = self._programs[without_sizes(key)]
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
