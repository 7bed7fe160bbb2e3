"""Calls -> seconds, of two ways taken in turn so that what disturbs one disturbs the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

Run = Callable[[], object]


def seconds(run: Run, calls: int = 1) -> float:
    """Give the seconds that so many calls take."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - start


def before_and_after(before: Run, after: Run, calls: int, rounds: int = 9) -> tuple[float, float, float]:
    """Time two ways in turn: the medians of so many calls of each, and how many times faster the second is."""
    before(), after()
    pairs = [(seconds(before, calls), seconds(after, calls)) for _ in range(rounds)]
    ratios = [one / other for one, other in pairs]
    return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs), median(ratios)


def change_text(before: float, after: float, times: float) -> str:
    """Say two times and their ratio."""
    return f"{before:.4f} s → {after:.4f} s, × {times:.2f}"
