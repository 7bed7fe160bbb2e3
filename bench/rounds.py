"""Time ways of doing the same work in turn in one process, after their answers were compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from weft.console.bench.harness import ratios, spread

Work = Callable[[], Any]
WARM_UP = 4
TOLERANCE = 1e-4  # relative to the largest element: the same float32 arithmetic in another order


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds of each contestant, round by round."""

    rounds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        """The median of one contestant."""
        return statistics.median(self.rounds[name])

    def ratio(self, above: str, *below: str) -> tuple[float, float, float]:
        """One contestant over the sum of others, in each round: median and quartiles, so that slow drift cancels."""
        sums = [sum(row) for row in zip(*(self.rounds[name] for name in below), strict=True)]
        found = ratios(self.rounds[above], sums)
        return found.median, found.low, found.high

    def show(self, name: str) -> str:
        """A median with its quartiles, in milliseconds."""
        found = spread(self.rounds[name])
        return f"{name} {1e3 * found.median:.3f} ms ({1e3 * found.low:.3f} to {1e3 * found.high:.3f})"


def ratio_text(ratio: tuple[float, float, float]) -> str:
    """A ratio with its quartiles."""
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})"


def in_turn(contestants: Mapping[str, Work], rounds: int = 15, *, alike: bool = True) -> Times:
    """Check that all give what the first one gives, warm up, then time them A B C, A B C, ...

    Where `alike` is false the contestants do different work, and whoever calls this has compared the answers.
    """
    answers = {name: _tensors(work()) for name, work in contestants.items()}
    if alike:
        first, *others = answers
        for name in others:
            compare(answers[name], answers[first], f"{name} against {first}")
    for work in contestants.values():
        for _ in range(WARM_UP):
            work()
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            start = time.perf_counter()
            work()
            found[name].append(time.perf_counter() - start)
    return Times(found)


def compare(given: Any, expected: Any, what: str) -> None:
    """Stop the run if answers differ by more than rounding explains."""
    ours, theirs = _tensors(given), _tensors(expected)
    if len(ours) != len(theirs):
        raise SystemExit(f"{what}: {len(ours)} results in the place of {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape or not bool((one - other).abs().max() <= TOLERANCE * other.abs().max()):
            raise SystemExit(f"{what}: wrong")


def _tensors(answer: Any) -> list[torch.Tensor]:
    if isinstance(answer, torch.Tensor):
        return [answer.detach()]
    if isinstance(answer, (list, tuple)):
        return [tensor for item in answer for tensor in _tensors(item)]
    return []
