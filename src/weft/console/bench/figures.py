"""Times of rounds -> medians with their spread, and ratios taken round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import numpy as np

NOISY = 0.1


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and half of what lies between the quartiles."""

    median: float
    half: float

    @property
    def noisy(self) -> bool:
        """Tell whether the middle half of the figures lies further apart than a quiet machine's would."""
        return 2 * self.half > NOISY * self.median


def spread(figures: Sequence[float]) -> Spread:
    """Give the median and the spread of some figures."""
    if len(figures) < 2:
        return Spread(figures[0], 0.0)
    low, _, high = quantiles(figures, n=4, method="inclusive")
    return Spread(median(figures), (high - low) / 2)


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Divide round by round, so that a slow drift of the machine cancels."""
    return spread([one / other for one, other in zip(above, below, strict=True)])


def error_of(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Give the largest relative RMS difference of any result; infinite where sizes, NaNs or infinities differ."""
    if len(found) != len(expected):
        return float("inf")
    return max((_error(one, other) for one, other in zip(found, expected, strict=True)), default=0.0)


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape or not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    difference = np.linalg.norm(found[finite] - expected[finite])
    size = np.linalg.norm(expected[finite])
    return float(difference / size) if size else (float("inf") if difference else 0.0)


def time_text(seconds: float) -> str:
    """Say a time with three digits."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
