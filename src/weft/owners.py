"""Tell whose code a file holds, the user's or a library's, and keep the user's frames in what an error shows."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from weft.errors import WeftError


class Owner(Enum):
    """Who wrote a file, and so who can change the line that something went wrong in."""

    WEFT = auto()
    TORCH = auto()
    INSTALLED = auto()  # a package of anybody else's
    PYTHON = auto()  # the standard library, also what of it is frozen
    USER = auto()  # all else: files, notebooks, text that was compiled


def both(folder: Path | str) -> tuple[str, ...]:
    """How names of files in a folder begin: as it was imported, and without links, since frames may carry either."""
    path = Path(folder)
    return tuple(dict.fromkeys(f"{each}{'' if str(each).endswith('/') else '/'}" for each in (path, path.resolve())))


def _folders_of(package: str) -> Sequence[str]:
    """Where a package lies; it is not imported, since there are commands that start without PyTorch."""
    found = find_spec(package)
    return (found.submodule_search_locations or ()) if found is not None else ()


WEFT = both(Path(__file__).parent)
TORCH = tuple(name for folder in _folders_of("torch") for name in both(folder))


def _begins(*names: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, names)) or "(?!)")  # which no name fits


def _lies_in(*kinds: str) -> tuple[str, ...]:
    return tuple(name for kind in kinds for name in both(sysconfig.get_path(kind)))


# The first row that fits counts, since folders of one lie inside of another's.
OWNERS = (
    (Owner.WEFT, _begins(*WEFT)),
    (Owner.TORCH, _begins(*TORCH)),
    (Owner.INSTALLED, _begins(*_lies_in("purelib", "platlib"))),
    (Owner.INSTALLED, re.compile(r".*/(site|dist)-packages/")),  # of whatever this environment was made from
    (Owner.PYTHON, _begins("<frozen", *_lies_in("stdlib", "platstdlib"))),
)


@lru_cache(maxsize=100_000)  # code that is made again and again has names without end
def owner_of(filename: str) -> Owner:
    """Tell whose code a file holds, by its name alone."""
    return next((owner for owner, names in OWNERS if names.match(filename)), Owner.USER)


def show_users_frames(error: WeftError) -> None:
    """Leave only the user's frames in the traceback of an error, and of its causes: its text says the rest.

    A cause that says the same, with another way out, is not shown again; its frames are.
    """
    frames = list(_frames(error))
    cause = error.__cause__
    while isinstance(cause, WeftError) and cause.fact == error.fact:
        frames += _frames(cause)
        error.__suppress_context__, cause = True, cause.__cause__
    if cause is not error.__cause__:
        error.__cause__ = cause
    kept: TracebackType | None = None
    for one in reversed(frames):
        if owner_of(one.tb_frame.f_code.co_filename) not in (Owner.WEFT, Owner.TORCH):
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    error.__traceback__ = kept


def _frames(error: BaseException) -> Iterator[TracebackType]:
    place = error.__traceback__
    while place is not None:
        yield place
        place = place.tb_next
