"""Count the calls of one object that Python runs now: code must not be traced while another thread runs it.

While code is traced, stand-ins are in the places that it writes (`self.count = ...`), where another thread would find
them. So calls by Python wait for a trace, and a trace does not begin while there are any in other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, Protocol

from weft.guards.entry import MISSED, Entry


class Unseen(Protocol):
    """Counts the calls that go by without a look, and knows in which mode of a module they do."""

    unseen: int
    root: Any
    training: Any


class PythonRuns:
    """The calls by thread, each of which touches its own count alone; `trace` is held while code is traced."""

    def __init__(self, trace: AbstractContextManager[Any]) -> None:
        self._trace = trace
        self._running: dict[int, int] = {}

    def begin(self) -> None:
        """Begin a call, which `end` has to end."""
        thread = get_ident()
        # On the other side is a thread that traces, which waits for none of those that wait here.
        with self._trace:
            self._running[thread] = self._running.get(thread, 0) + 1

    def end(self) -> None:
        """End a call."""
        thread = get_ident()
        count = self._running[thread] - 1
        if count:
            self._running[thread] = count
        else:
            del self._running[thread]

    def entry(self, function: Callable[..., Any], calls: Unseen) -> Entry:
        """Make the entry of calls that go by unseen: begun, run and ended in one function, which is quick."""
        running, trace, root = self._running, self._trace, calls.root

        def entry(*arguments: Any, **keywords: Any) -> Any:
            if calls.unseen <= 0 or getattr(root, "training", None) is not calls.training:
                return MISSED
            calls.unseen -= 1
            thread = get_ident()
            with trace:
                count = running.get(thread, 0)
                running[thread] = count + 1
            try:
                return function(*arguments, **keywords)
            finally:
                if count:
                    running[thread] = count
                else:
                    del running[thread]

        return entry

    def others(self) -> bool:
        """Whether another thread runs a call; asked by one that holds `trace`."""
        return any(thread != get_ident() for thread in list(self._running))
