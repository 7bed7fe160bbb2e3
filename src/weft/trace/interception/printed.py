"""Keep what traced code prints until its program is there; where Python has to run at each call, nothing is printed.

A program prints once, when it is made. Code that prints tensors, prints where values decide, or writes a log there, is
no program: each call has something else to say.
"""

from __future__ import annotations

import builtins
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from weft.trace.interception.capture import is_stand_in, tree_flatten
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import user_place


@dataclass(slots=True)
class Printed:
    """What one trace has printed: texts, and where they go; in a trace that `decides` by values some is refused.

    With `has_decided`, all is.
    """

    decides: bool = False
    has_decided: bool = False
    texts: list[tuple[Any, str]] = field(default_factory=list)

    def note(self, things: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note a call of `print`."""
        if self.decides and (self.has_decided or any(map(is_stand_in, tree_flatten(things)[0]))):
            refuse("print", user_place())
        text = io.StringIO()
        builtins.print(*things, **{**keywords, "file": text})  # noqa: T201 - it is what the user's code does
        self.texts.append((keywords.get("file"), text.getvalue()))

    def decided(self) -> None:
        """Refuse what has been printed, as values decide what follows; from now on nothing may be printed."""
        self.has_decided = True
        if self.texts:
            refuse("print", user_place())

    def show(self) -> None:
        """Print it."""
        for file, text in self.texts:
            (sys.stdout if file is None else file).write(text)


OWN = ("torch", "weft")  # whose logs tell of tracing itself


class _Current(threading.local):
    printed: Printed | None = None


_CURRENT = _Current()


def print_later(*things: Any, **keywords: Any) -> None:
    """The builtin `print`, as traced code finds it."""
    printed = _CURRENT.printed
    if printed is None:
        builtins.print(*things, **keywords)  # noqa: T201 - it is what the user's code does
    else:
        printed.note(things, keywords)


@contextmanager
def printing(printed: Printed) -> Iterator[None]:
    """In this block, this thread traces."""
    _watch_logs()
    before, _CURRENT.printed = _CURRENT.printed, printed
    try:
        yield
    finally:
        _CURRENT.printed = before


def _watch_logs() -> None:
    make = logging.getLogRecordFactory()
    if not isinstance(make, _Records):
        logging.setLogRecordFactory(_Records(make))


class _Records:
    """Makes records of logs as before, but for traced code that values decide in."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **keywords: Any) -> logging.LogRecord:
        printed = _CURRENT.printed
        if printed is not None and printed.has_decided and str(arguments[0]).partition(".")[0] not in OWN:
            refuse("print", user_place(), detail="a log")
        return self._make(*arguments, **keywords)
