"""Tell whose code a file holds: the user's, a library's, Python's or Weft's."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from enum import Enum, auto
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path


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
