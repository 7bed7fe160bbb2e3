"""Two ways are timed in turn until it is clear on which side of a claim their ratio lies."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from weft.console.tour import stop
from weft.console.tour.stop import MOST_ROUNDS, ROUNDS, before_and_after, clear


def taking(monkeypatch: pytest.MonkeyPatch, ratios) -> list[float]:
    """Let the second way take one second, and the first so many; gives what was asked for."""
    asked: list[float] = []
    times = chain.from_iterable((ratio, 1.0) for ratio in ratios)

    def seconds(run, calls: int) -> float:
        asked.append(next(times))
        return asked[-1]

    monkeypatch.setattr(stop, "seconds", seconds)
    return asked


def nothing() -> None:
    pass


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_clear_ratio_takes_few_rounds_whichever_it_is(ratio: float, monkeypatch) -> None:
    asked = taking(monkeypatch, repeat(ratio))
    assert before_and_after(nothing, nothing, 1) == (ratio, 1.0, ratio)
    assert len(asked) == 2 * ROUNDS


def test_disturbed_rounds_are_followed_by_more(monkeypatch) -> None:
    taking(monkeypatch, chain([0.5, 1.2, 0.6] * 3, repeat(1.2)))
    assert before_and_after(nothing, nothing, 1)[2] == 1.2


def test_what_never_becomes_clear_ends(monkeypatch) -> None:
    asked = taking(monkeypatch, chain.from_iterable(repeat((0.9, 1.1))))
    before_and_after(nothing, nothing, 1)
    assert len(asked) == 2 * MOST_ROUNDS


def test_what_is_clear_depends_on_the_claim() -> None:
    assert clear([0.8, 0.8, 0.9, 0.9], 0.67)
    assert not clear([0.6, 0.6, 0.8, 0.8], 0.67)
