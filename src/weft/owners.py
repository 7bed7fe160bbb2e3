"""The name of a file, as frames and tracebacks give it -> whose code is in it: the user's or a library's."""

from __future__ import annotations

import re
import sysconfig
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path

import torch


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


WEFT = both(Path(__file__).parent)
TORCH = both(Path(torch.__file__).parent)


def _begins(*names: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, names)))


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
