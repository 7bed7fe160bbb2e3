"""An exception that only tracing meets, not eager -> the error that says whose fault it is."""

from __future__ import annotations

from weft.errors import InternalError, UnsupportedError, WeftError, source_line
from weft.trace.places import is_raised_by_weft, place_of
from weft.trace.refusals import KEEP_EAGER

# What a program cannot cause by what it does with stand-ins; raised by a line of Weft it is a mistake in Weft.
MISTAKES = (NameError, AttributeError, AssertionError, KeyError, RecursionError)


def trace_failure(name: str, error: Exception) -> WeftError:
    """The error for a program that runs imperatively but raised this while it was traced."""
    place = place_of(error)
    where = source_line(place.filename, place.line) if place else None
    first_line = str(error).strip().partition("\n")[0]
    raised = f"{type(error).__name__}: {first_line}"
    if isinstance(error, MISTAKES) and is_raised_by_weft(error):
        return InternalError(
            f"tracing {name} failed with {raised}",
            where=where,
            why="this is a mistake in Weft, not in your program, which runs imperatively",
            fix='please report it; until then use hybridize(..., fallback="eager")',
        )
    return UnsupportedError(
        f"{name} runs imperatively but cannot be traced",
        where=where,
        why=f"on tensors without elements it raised {raised}",
        fix=KEEP_EAGER,
    )
