"""Say how a command ended: its result as a document or JSON, its error or interruption, its exit status."""

from __future__ import annotations

import json
import math
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from weft.console import CTRL_C
from weft.console.commands import COMMANDS
from weft.document.blocks import Document
from weft.errors import ExecutionError, InternalError, UnsupportedError, UsageError, WeftError, source_line
from weft.owners import Owner, owner_of

SCHEMA = 1
OK, CLAIM_FAILED, USAGE, UNSUPPORTED, EXECUTION, INTERNAL = 0, 1, 2, 3, 4, 70
INTERRUPTED, BROKEN_PIPE, TERMINATED = CTRL_C, 141, 143  # as a shell counts signals

# The first class that fits decides; a command that reads a file turns its faults into an ExecutionError.
STATUSES: tuple[tuple[type[WeftError], int], ...] = (
    (UsageError, USAGE),
    (UnsupportedError, UNSUPPORTED),
    (ExecutionError, EXECUTION),
    (InternalError, INTERNAL),
)
# A closed terminal sends the first; Windows does not have it.
ASKING = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGTERM") if hasattr(signal, name))


def as_json(command: str | None, data: Mapping[str, Any]) -> str:
    """Write what a command found."""
    whole = _finite({"schema": SCHEMA, "command": command, **data})
    return json.dumps(whole, indent=2, ensure_ascii=True, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    """Write null for a number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return list(map(_finite, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Outcome:
    """A document, or a text that is printed as it is; the same as data; and what the process ends with."""

    shown: Document | str
    data: Mapping[str, Any]
    status: int = OK


def status_of(error: WeftError) -> int:
    """Give the exit status of an error: by its class, so by whose fault it is."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), INTERNAL)


def error_data(error: BaseException, fact: str, status: int) -> dict[str, Any]:
    """Give an error as data: its class, its parts and the exit status."""
    known = error.parts() if isinstance(error, WeftError) else ()
    parts = dict.fromkeys(("where", "why", "fix")) | dict(known)
    return {"error": {"class": type(error).__name__, "fact": fact, **parts, "status": status}}


class Terminated(KeyboardInterrupt):
    """Somebody asked the process to end: what cleans up after Ctrl-C cleans up after this."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have signals that ask the process to end raise `Terminated`; what somebody else answers stays so."""
    here = threading.current_thread() is threading.main_thread()
    taken = [number for number in ASKING if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def status_after(error: KeyboardInterrupt) -> int:
    """Give the exit status as a shell counts it: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + error.number if isinstance(error, Terminated) else INTERRUPTED


def told_after(error: KeyboardInterrupt, words: Sequence[str]) -> str:
    """Say that a command was interrupted, and what to do."""
    how = f"ended by {error.number.name}" if isinstance(error, Terminated) else "interrupted"
    told = f"{how}; files are written whole or not at all, so nothing is left half done"
    ways = [command.interrupted for command in COMMANDS if command.name in words[:1]]
    return "\n".join([told, *(f"  fix   {way}" for way in ways)])


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(number)


def users_line(error: BaseException) -> str | None:
    """Give the user's line that the exception came from; None where Weft, or nobody's file, was the last to act.

    What PyTorch and other libraries raise is the fault of whoever called them.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        owner = owner_of(frame.filename)
        if owner is Owner.WEFT:
            return None
        if owner is Owner.USER and frame.filename.endswith(".py"):
            return source_line(frame.filename, frame.lineno or 1)
    return None


def users_traceback(error: BaseException) -> str:
    """Give the traceback from the user's first line on: how Weft came there is nothing to the user."""
    place = error.__traceback__
    while place is not None and owner_of(place.tb_frame.f_code.co_filename) is Owner.WEFT:
        place = place.tb_next
    return "".join(traceback.format_exception(type(error), error, place or error.__traceback__))
