"""What a command found -> what is printed: a document for people, or data for programs, and the exit status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.console import CTRL_C
from weft.document.blocks import Document
from weft.errors import ExecutionError, InternalError, UnsupportedError, UsageError, WeftError

OK, CLAIM_FAILED, USAGE, UNSUPPORTED, EXECUTION, INTERNAL = 0, 1, 2, 3, 4, 70
INTERRUPTED, BROKEN_PIPE, TERMINATED = CTRL_C, 141, 143  # as a shell counts signals

# The first class that fits decides; a command that reads a file turns its faults into an ExecutionError.
STATUSES: tuple[tuple[type[WeftError], int], ...] = (
    (UsageError, USAGE),
    (UnsupportedError, UNSUPPORTED),
    (ExecutionError, EXECUTION),
    (InternalError, INTERNAL),
)


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
