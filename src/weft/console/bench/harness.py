"""Time contestants in turn (A B C A B C ...) until the medians have settled, and say how far figures lie apart."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

Clock = Callable[[], float]
SHORTEST_SAMPLE = 0.0005  # seconds: a thousand times what reading the clock costs
WARMING_SHARE = 0.3  # of a turn: caches, branch predictors and the processor's clock adapt to the new contestant


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the quartiles around it, and of how many figures."""

    median: float
    low: float
    high: float
    count: int

    @property
    def half(self) -> float:
        """Give half of what lies between the quartiles."""
        return (self.high - self.low) / 2

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


class Runner(Protocol):
    """A contestant that is ready to be timed."""

    name: str

    def turn(self, seconds: float) -> float:
        """Run for about these seconds and give the time of one call."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How long a turn is, when the medians count as settled, and when to stop in any case."""

    turn_seconds: float = 0.15
    fewest_rounds: int = 9
    seconds: float = 30.0
    within: float = 0.005


QUICK = TurnLimits(turn_seconds=0.02, fewest_rounds=3, seconds=1.0, within=0.1)


@dataclass(frozen=True, slots=True)
class Times:
    """The time of one call by contestant and round, and the sentences about those who dropped out."""

    rounds: dict[str, list[float]]
    dropped: dict[str, str]
    settled: bool


class DroppedOutError(Exception):
    """A contestant failed while it was timed."""


def interleave(
    runners: Sequence[Runner],
    limits: TurnLimits,
    clock: Clock = time.monotonic,
    told: Callable[[int], None] = lambda _: None,
) -> Times:
    """Give each contestant a turn, then each another one, until all medians have settled or the time is over.

    `told` is given the number of rounds that are done.
    """
    rounds: dict[str, list[float]] = {runner.name: [] for runner in runners}
    dropped: dict[str, str] = {}
    started = clock()
    done = 0
    while rounds:
        for runner in runners:
            if runner.name in rounds:
                try:
                    rounds[runner.name].append(runner.turn(limits.turn_seconds))
                except DroppedOutError as error:
                    del rounds[runner.name]
                    dropped[runner.name] = str(error)
        done += 1
        told(done)
        if done >= limits.fewest_rounds:
            stable = settled(rounds.values(), limits.within)
            if stable or clock() - started >= limits.seconds:
                return Times(rounds, dropped, stable)
    return Times(rounds, dropped, settled=False)


def time_turn(call: Callable[[], Any], seconds: float, clock: Clock = time.perf_counter) -> float:
    """Warm up, then time batches of calls for about these seconds; give the median batch's time of one call."""
    began = clock()
    calls = 0
    while calls == 0 or clock() - began < WARMING_SHARE * seconds:
        call()
        calls += 1
    each = max((clock() - began) / calls, 1e-9)
    batch = max(1, int(SHORTEST_SAMPLE / each))
    samples: list[float] = []
    collects = gc.isenabled()
    gc.disable()
    try:
        began = clock()
        while not samples or clock() - began < (1 - WARMING_SHARE) * seconds:
            samples.append(_time_batch(call, batch, clock))
    finally:
        if collects:
            gc.enable()
    return statistics.median(samples)


def _time_batch(call: Callable[[], Any], batch: int, clock: Clock) -> float:
    numbers = range(batch)
    start = clock()
    for _ in numbers:
        call()
    return (clock() - start) / batch
