"""Keep on disk whether lanes or one lane were faster by the clock, for each plan, and give it to later processes.

Programs try both on calls as they come (weft.codegen.threads.trial). What the clock has decided is written when the
process ends, or when somebody asks for it, beside the plans: the next process begins with it.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from weakref import WeakSet

from weft.codegen.objects.native import ObjectCache, code_version
from weft.codegen.threads.trial import ALONE, BEST_LANES, BEST_SINGLE, DECIDED, first_words
from weft.config import config
from weft.runtime.machine import machine_key
from weft.target import host_target

FOLDER = "lanes"
LARGEST_CACHE = 4 * 1024 * 1024
NANOSECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """Whether a plan runs on one lane alone, and the shortest times of both that the clock has seen, in seconds."""

    lanes: int
    alone: bool
    on_lanes: float
    single: float

    def __str__(self) -> str:
        chosen = "one lane runs" if self.alone else f"{self.lanes} lanes run"
        times = (seconds_text(self.on_lanes), seconds_text(self.single))
        return f"by the clock {self.lanes} lanes take {times[0]}, one takes {times[1]}: {chosen}"


def seconds_text(seconds: float) -> str:
    """Say a time in milliseconds or microseconds."""
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"


class LaneTrialWords:
    """The words of one plan's trial, which its dispatcher reads and writes."""

    def __init__(self, description: str, lanes: int, *, alone: bool) -> None:
        """The `description` is all that the plan's machine code is made of; by estimate it runs on lanes or `alone`."""
        parts = (code_version(), machine_key(host_target()), description)
        self._key = hashlib.sha256(repr(parts).encode()).hexdigest()
        self._lanes = lanes
        self._kept = _read(self._key, lanes)
        self._address = 0
        self.first = first_words(alone=alone, decided=False)
        if self._kept is not None:
            self.first = first_words(alone=self._kept.alone, decided=True)
        _all.add(self)

    def lie_at(self, address: int, keeper: object) -> None:
        """Say where the words are, in memory that is kept with them."""
        self._address, self._keeper = address, keeper

    @property
    def choice(self) -> LaneChoice | None:
        """What the clock has decided: in this process, else in an earlier one; None before it has."""
        words = self._words()
        if not words or not words[DECIDED] or not (words[BEST_LANES] and words[BEST_SINGLE]):
            return self._kept
        times = [words[place] * NANOSECONDS for place in (BEST_LANES, BEST_SINGLE)]
        return LaneChoice(self._lanes, bool(words[ALONE]), *times)

    def keep(self) -> None:
        """Write what the clock has decided in this process."""
        folder, found = config().cache_dir, self.choice
        if folder is None or found is None or found == self._kept:
            return
        text = f"{self._key}\n{int(found.alone)} {found.on_lanes} {found.single}"
        _cache(folder).write(self._key, text.encode("ascii"))
        self._kept = found

    def _words(self) -> Sequence[int]:
        # SAFETY: `lie_at` was given memory of so many words, which is kept as long as this object.
        return list((ctypes.c_int64 * len(self.first)).from_address(self._address)) if self._address else []


_all: WeakSet[LaneTrialWords] = WeakSet()


def keep_all() -> None:
    """Write what the clock has decided of all plans of this process."""
    for words in list(_all):
        words.keep()


atexit.register(keep_all)


def _read(key: str, lanes: int) -> LaneChoice | None:
    folder = config().cache_dir
    entry = None if folder is None else _cache(folder).read(key)
    if entry is None:
        return None
    try:
        name, numbers = entry.decode("ascii").split("\n")
        alone, on_lanes, single = numbers.split(" ")
        # An entry that was moved to another's place is whole, and says whose it is.
        return LaneChoice(lanes, alone == "1", float(on_lanes), float(single)) if name == key else None
    except ValueError:
        return None


@cache
def _cache(folder: Path) -> ObjectCache:
    return ObjectCache(folder / FOLDER, LARGEST_CACHE)
