"""Calls -> seconds, of two ways taken in turn so that what disturbs one disturbs the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

Run = Callable[[], object]
ROUNDS, MOST_ROUNDS = 9, 45  # at first, and where another process disturbs them


def seconds(run: Run, calls: int = 1) -> float:
    """Give the seconds that so many calls take."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - start


def before_and_after(before: Run, after: Run, calls: int, claimed: float = 1.0) -> tuple[float, float, float]:
    """Time two ways in turn: the medians of so many calls of each, and how many times faster the second is.

    Where the middle half of the ratios lies on both sides of the one that is claimed, more rounds are made.
    """
    before(), after()
    pairs: list[tuple[float, float]] = []
    ratios: list[float] = []
    while len(pairs) < ROUNDS or (len(pairs) < MOST_ROUNDS and not clear(ratios, claimed)):
        pairs += [(seconds(before, calls), seconds(after, calls)) for _ in range(ROUNDS)]
        ratios = [one / other for one, other in pairs]
    return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs), median(ratios)


def clear(ratios: Sequence[float], claimed: float) -> bool:
    """Tell whether the middle half of some ratios lies on one side of what is claimed."""
    low, _, high = quantiles(ratios, n=4)
    return low > claimed or high < claimed


def change_text(before: float, after: float, times: float) -> str:
    """Say two times and their ratio."""
    return f"{before:.4f} s → {after:.4f} s, × {times:.2f}"
