"""Keep what traced code prints and logs until its program is there; where Python runs each call, it is Python's.

A program prints once, when it is made, however often its code is traced for that, and with which sizes. Code that
prints tensors, prints where values decide, or writes a log there, is no program: each call has something else to say.
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
from functools import wraps
from typing import Any

import torch

from weft.trace.interception.capture import hint_of, is_stand_in, tree_flatten
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import user_place


@dataclass(frozen=True, slots=True)
class Logged:
    """What was logged: a record that is still to be handled."""

    logger: logging.Logger
    level: int
    text: str
    record: logging.LogRecord = field(compare=False)


@dataclass(slots=True)
class Printed:
    """What one trace has printed: texts, and where they go; in one that `decides` by values tensors are refused.

    With `has_decided`, all is.
    """

    decides: bool = False
    has_decided: bool = False
    texts: list[tuple[Any, str] | Logged] = field(default_factory=list)

    def note(self, things: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note a call of `print`."""
        if self.has_decided or (self.decides and any(map(is_stand_in, tree_flatten(things)[0]))):
            refuse("print", user_place())
        text = io.StringIO()
        builtins.print(*things, **{**keywords, "file": text})  # noqa: T201 - it is what the user's code does
        self.texts.append((keywords.get("file"), text.getvalue()))

    def note_log(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        """Note what is logged; as text, where what it is of may be another thing later."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_as_in_the_call, record.args))
        text = record.getMessage()
        if not isinstance(record.args, tuple) or not all(map(_stays, record.args)):
            record.msg, record.args = text, ()
        self.texts.append(Logged(logger, record.levelno, text, record))

    def decided(self) -> None:
        """Refuse what has been printed, as values decide what follows; from now on nothing may be printed."""
        self.has_decided = True
        if not all(isinstance(entry, Logged) for entry in self.texts):
            refuse("print", user_place())

    def show(self) -> None:
        """Print and log it."""
        for entry in self.texts:
            if isinstance(entry, Logged):
                entry.logger.handle(entry.record)
            else:
                (sys.stdout if entry[0] is None else entry[0]).write(entry[1])


STEADY = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)


def _as_in_the_call(thing: Any) -> Any:
    """A number, or a tuple of such, as the call has it that is traced."""
    return tuple(map(_as_in_the_call, thing)) if type(thing) in (tuple, torch.Size) else hint_of(thing)


def _stays(thing: Any) -> bool:
    """Whether nobody can change a thing."""
    return type(thing) in STEADY or (type(thing) is tuple and all(map(_stays, thing)))


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
    if not hasattr(logging.Logger.handle, "handles_later"):
        logging.Logger.handle = _handling_later(logging.Logger.handle)  # type: ignore[method-assign]


def _handling_later(usual: Callable[[logging.Logger, logging.LogRecord], None]) -> Any:
    @wraps(usual)
    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        printed = _CURRENT.printed
        if printed is None or _is_own(record.name):
            usual(self, record)
        else:
            printed.note_log(self, record)

    handle.handles_later = True  # type: ignore[attr-defined]
    return handle


def _is_own(name: object) -> bool:
    return str(name).partition(".")[0] in OWN


class _Records:
    """Makes records of logs as before, but for traced code that values decide in."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **keywords: Any) -> logging.LogRecord:
        printed = _CURRENT.printed
        if printed is not None and printed.has_decided and not _is_own(arguments[0]):
            refuse("print", user_place(), detail="a log")
        return self._make(*arguments, **keywords)
