"""Describe a stop of the tour, its code, its claims and its texts, and time what it claims in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from weft.document.blocks import Picture

Run = Callable[[], object]
ROUNDS, MOST_ROUNDS = 9, 45  # at first, and where another process disturbs them
Names = Mapping[str, Any]
FOLDER = Path(__file__).parent / "languages"


def seconds(run: Run, calls: int = 1) -> float:
    """Give the seconds that so many calls take."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - start


def before_and_after(before: Run, after: Run, calls: int, claimed: float = 1.0) -> tuple[float, float, float]:
    """Time two ways in turn: the medians of so many calls of each, and their quotient.

    Where the middle half of the ratios lies on both sides of the one that is claimed, more rounds are made.
    """
    before(), after()
    pairs: list[tuple[float, float]] = []
    ratios: list[float] = []
    while len(pairs) < ROUNDS or (len(pairs) < MOST_ROUNDS and not clear(ratios, claimed)):
        pairs += [(seconds(before, calls), seconds(after, calls)) for _ in range(ROUNDS)]
        ratios = [one / other for one, other in pairs]
    first, second = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    return first, second, first / second


def clear(ratios: Sequence[float], claimed: float) -> bool:
    """Tell whether the middle half of some ratios lies on one side of what is claimed."""
    low, _, high = quantiles(ratios, n=4)
    return low > claimed or high < claimed


def change_text(before: float, after: float, times: float) -> str:
    """Say two times and their quotient, with digits enough that a reader gets the same one."""
    return f"{before:.4g} s → {after:.4g} s, × {times:.2f}"


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: its name in the texts, the chapter's own figure, what was found here, and whether it holds.

    `times` are seconds before and after, where that is what was found.
    """

    name: str
    chapter: str
    here: str
    holds: bool
    times: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop; `needs` are public names of Weft without which it is not listed, `dialect` whose listings it is of.

    `code` is run as a program of its own. `check` is given the names it has bound and what it printed, `draw` names.
    """

    name: str
    code: str
    check: Callable[[Names, str], tuple[Claim, ...]]
    needs: tuple[str, ...] = ()
    draw: Callable[[Names], Picture] | None = None
    dialect: str = "torch"


@dataclass(frozen=True, slots=True)
class Texts:
    """`words` of the tour itself, of each stop a title and a text, and the sentence of each claim."""

    language: str
    words: dict[str, str]
    stops: dict[str, dict[str, str]]
    claims: dict[str, str]

    def counted(self, name: str, count: int) -> str:
        """Give a number of things in words; a language that has a form for one thing writes it first, before a bar."""
        forms = self.words[name].split("|")
        return forms[0 if count == 1 else -1].format(count=count)


def read_texts(language: str) -> Texts:
    """Read the file of a language."""
    found = json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8"))
    return Texts(language, found["words"], found["stops"], found["claims"])
