"""How much time is given for memory: none where it is not asked for, little for little of it."""

from dataclasses import dataclass
from typing import cast

import pytest

from weft.plan.draft import LEAST_BYTES, NEGLIGIBLE_BYTES, SPENDING, THRIFTS, Draft, Thrift
from weft.plan.planned import PlannedGraph

KB = 1024


@dataclass(frozen=True)
class Found:
    peak_bytes: int
    seconds: float


def within(monkeypatch: pytest.MonkeyPatch, wanted: int, found: list[Found]) -> tuple[Found, int]:
    """What is chosen if the ways of planning give these, and how many of them are tried."""
    ways = dict(zip((SPENDING, *THRIFTS), found, strict=False))
    tried: list[Thrift] = []

    def timed(_draft: Draft, thrift: Thrift = SPENDING) -> tuple[Found, float]:
        tried.append(thrift)
        chosen = ways.get(thrift, found[-1])
        return chosen, chosen.seconds

    monkeypatch.setattr(Draft, "timed", timed)
    draft = Draft(None, ())  # type: ignore[arg-type]  # nothing looks at the graph
    return cast("Found", cast("PlannedGraph", draft.within(wanted))), len(tried)


def test_what_is_done_soonest_is_taken_where_its_memory_is_little_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest = Found(1000 * KB, 1.0)
    assert within(monkeypatch, 1000 * KB, [fastest, Found(500 * KB, 1.0)]) == (fastest, 1)


def test_the_first_way_with_little_enough_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = Found(900 * KB, 1.01)
    assert within(
        monkeypatch, 1000 * KB, [Found(1500 * KB, 1.0), Found(1200 * KB, 1.0), enough, Found(100 * KB, 1.0)]
    ) == (enough, 3)


def test_least_memory_is_taken_where_none_is_little_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    least = Found(1200 * KB, 1.0)
    found, tried = within(monkeypatch, 1000 * KB, [Found(1500 * KB, 1.0), least, Found(1300 * KB, 1.0)])
    assert (found, tried) == (least, 1 + len(THRIFTS))


def test_little_memory_is_not_bought_with_much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest = Found(1500 * KB, 1.0)
    assert within(monkeypatch, 1000 * KB, [fastest, Found(900 * KB, 1.2)])[0] == fastest


def test_much_memory_is_bought_with_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    frugal = Found(900 * KB, 1.2)
    assert within(monkeypatch, 1000 * KB, [Found(1001 * KB + NEGLIGIBLE_BYTES, 1.0), frugal])[0] == frugal


def test_for_very_little_memory_no_other_way_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest, frugal = Found(1000 * KB + LEAST_BYTES, 1.0), Found(900 * KB, 1.0)
    assert within(monkeypatch, 1000 * KB, [fastest, frugal]) == (fastest, 1)
    assert within(monkeypatch, 1000 * KB - 1, [fastest, frugal]) == (frugal, 2)


def test_where_it_is_not_known_how_much_would_do_much_is_saved_and_little_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    little, much = Found(NEGLIGIBLE_BYTES, 1.0), Found(NEGLIGIBLE_BYTES + 1, 1.0)
    frugal = Found(900 * KB, 1.0)
    assert within(monkeypatch, 0, [little, frugal]) == (little, 1)
    assert within(monkeypatch, 0, [much, frugal])[0] == frugal


def test_lanes_are_not_held_back_for_long_where_nobody_knows_how_many_bytes_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fastest, frugal = Found(9 * NEGLIGIBLE_BYTES, 1.0), Found(3 * NEGLIGIBLE_BYTES, 1.8)
    assert within(monkeypatch, 0, [fastest, frugal])[0] == fastest
    soon = Found(4 * NEGLIGIBLE_BYTES, 1.05)
    assert within(monkeypatch, 0, [fastest, frugal, soon])[0] == soon
