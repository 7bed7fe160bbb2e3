"""An exception that no command expected -> whose it is: of the file that the user named, or Weft's."""

from __future__ import annotations

import traceback

from weft.errors import source_line
from weft.owners import Owner, owner_of


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
