"""Find the line of the user's code in a traceback or a running thread."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType, TracebackType

from weft.errors import source_line
from weft.owners import Owner, owner_of

# Threads that wait for another one which runs the user's code: by identity, from who waits to who works.
HELPERS: dict[int, int] = {}


def line_of_error(error: BaseException) -> str | None:
    """Name the last line of the user's that an error came through."""
    return _line([(frame, line) for frame, line in _walk_traceback(error.__traceback__)][::-1])


def line_of_thread(identity: int) -> str | None:
    """Name the line of the user's that a thread is in now, or that whom it waits for is in."""
    return _line_now(HELPERS.get(identity, identity)) or _line_now(identity)


def _line_now(identity: int) -> str | None:
    # Asked for in passing: the table has this very frame, and held by it would be a circle of all that threads compute
    # with, which the collector would take apart in any order, or keep for long.
    return _line(_walk_stack(sys._current_frames().get(identity)))


def _walk_stack(frame: FrameType | None) -> Iterable[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _walk_traceback(traceback: TracebackType | None) -> Iterable[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _line(places: Iterable[tuple[FrameType, int]]) -> str | None:
    """The first of these places, innermost first, that is the user's."""
    for frame, line in places:
        name = frame.f_code.co_filename
        if not name.startswith("<") and owner_of(name) is Owner.USER:
            return source_line(name, line)
    return None
