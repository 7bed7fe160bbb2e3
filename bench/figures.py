"""Measured times -> medians, quartiles, ratios with their spread, and whether they have settled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the quartiles around it, and of how many figures."""

    median: float
    low: float
    high: float
    count: int

    @property
    def relative(self) -> float:
        """Give the distance of the quartiles as a part of the median."""
        return (self.high - self.low) / self.median if self.median else math.inf

    @property
    def uncertainty(self) -> float:
        """Give about the standard error of the median, as a part of it: it shrinks with the root of the count."""
        return 0.93 * self.relative / math.sqrt(self.count) if self.count > 1 else math.inf

    def as_dict(self) -> dict[str, float]:
        """Give the fields by name."""
        return asdict(self)


def spread(figures: Sequence[float]) -> Spread:
    """Take the median and quartiles."""
    if len(figures) == 1:
        return Spread(figures[0], figures[0], figures[0], 1)
    low, median, high = statistics.quantiles(figures, n=4, method="inclusive")
    return Spread(median, low, high, len(figures))


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Divide turn by turn: two figures of one round were taken within a second of each other, so slow drift cancels."""
    return spread([one / other for one, other in zip(above, below, strict=True)])


def settled(rounds: Iterable[Sequence[float]], within: float) -> bool:
    """Tell whether every contestant's median is known to within this part of itself."""
    return all(spread(figures).uncertainty <= within for figures in rounds)


def geometric_mean(figures: Sequence[float]) -> float | None:
    """Multiply and take the root; nothing of nothing."""
    return math.exp(statistics.fmean(map(math.log, figures))) if figures else None
