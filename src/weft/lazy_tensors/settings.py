"""A change of what operators read when they run (the default dtype, say) -> a point before which the queue is empty.

Lazy code gives what eager code gives at the call. What belongs to a thread goes along with a segment; what belongs to
the whole process cannot, so its setters wait. What is learned of a call holds for the settings it was learned under.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from weft.lazy_tensors.points import follow_paths_of
from weft.lazy_tensors.questions import in_task
from weft.trace.interception.modes import BLOCKS, SETTERS, announce, open_blocks

MOST_NUMBERS = 64
_flush = torch.set_flush_denormal  # not the one that is announced: a worker's own thread is nobody's setting
_SMALLEST = [sys.float_info.min]  # in a list: the compiler of Python would compute the product below beforehand


class Settings:
    """The settings of this process as a number, and whether under them operators have to run at their calls."""

    def __init__(self) -> None:
        self.number = 0
        self.at_once = False
        self._blocks = 0
        self._values: dict[str, str] = {}
        self._numbers: dict[Any, int] = {(): 0}
        self._finish: Callable[[], None] | None = None

    def watch(self, finish: Callable[[], None]) -> None:
        """From now on let `finish` do all that is queued before a setting changes; asked for again, it does nothing."""
        if self._finish is not None:
            return
        self._finish = finish
        self._blocks = open_blocks()
        self._look()
        for owner, name in SETTERS:
            announce(owner, name, lambda call, given, name=name: self._set(name, call, given))  # type: ignore[misc]
        for owner, name, step in BLOCKS:
            announce(owner, name, lambda call, _, step=step: self._step(step, call))  # type: ignore[misc]

    def _set(self, name: str, call: Callable[[], Any], given: Any) -> Any:
        self._before()
        result = call()
        # The one set last comes last, as two functions may set the same thing. By its text, as a list is no key.
        self._values.pop(name, None)
        self._values[name] = repr(given)
        self._look()
        return result

    def _step(self, step: int, call: Callable[[], Any]) -> Any:
        if in_task():
            return call()  # the block of a worker: nothing is recorded there
        self._before()
        result = call()
        self._blocks = max(self._blocks + step, 0)
        self._look()
        return result

    def _before(self) -> None:
        # A task cannot wait for itself; and what it sets, others may see at any time in any case.
        if self._finish is not None and not in_task():
            self._finish()

    def _look(self) -> None:
        self.at_once = self._blocks > 0 or torch.is_anomaly_enabled()
        key = (*self._values.items(), self.at_once) if self._values or self.at_once else ()
        if len(self._numbers) > MOST_NUMBERS:
            self._numbers.clear()
        following = max(self.number, *self._numbers.values(), 0) + 1
        self.number = self._numbers.setdefault(key, following)
        follow_paths_of(self.number)


def flushes_denormals() -> bool:
    """Whether this thread takes the smallest numbers for 0: PyTorch sets it, and tells nobody."""
    return _SMALLEST[0] * 0.5 == 0


@contextmanager
def flushing_denormals(flushes: bool) -> Iterator[None]:
    """Let this thread take the smallest numbers for 0, or not, in the block: threads inherit it when they begin."""
    before = flushes_denormals()
    if before == flushes:
        yield
        return
    _flush(flushes)
    try:
        yield
    finally:
        _flush(before)
