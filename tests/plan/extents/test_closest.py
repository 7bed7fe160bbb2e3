"""Where a loop ends is never before what is needed, and not far behind it where that goes in steps or twice as fast."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.ir.extents import Polynomial
from weft.plan.extents.ends import _closest

COUNT = 96
PLACES = np.arange(COUNT, dtype=np.int32)
SIZE = Polynomial.constant(1)
EXACT = {
    "as far as a size": PLACES,
    "two for each": PLACES // 2,
    "three for each": PLACES // 3,
    "whole tiles": PLACES // 32 * 32,
    "pairs of tiles": PLACES // 2 // 8 * 8,
}


def needed(least: NDArray[np.int32], size: int) -> int:
    return int(max((place + 1 for place, one in enumerate(least) if one < size), default=0))


def ends(least: NDArray[np.int32]) -> list[int]:
    end = _closest(SIZE, 1, least).of({SIZE: 0}, COUNT)
    return [end.count(size) for size in range(1, COUNT + 1)]


@pytest.mark.parametrize("name", EXACT)
def test_a_loop_ends_where_what_is_needed_does(name: str) -> None:
    assert ends(EXACT[name]) == [needed(EXACT[name], size) for size in range(1, COUNT + 1)]


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_needed_is_computed_and_known_to_be(seed: int) -> None:
    chance = np.random.default_rng(seed)
    least = np.sort(chance.integers(0, COUNT, COUNT)).astype(np.int32)
    end = _closest(SIZE, 1, least)
    assert all(found >= needed(least, size) for size, found in enumerate(ends(least), 1))
    known = np.repeat(end.part(4, COUNT).least, end.times)[:COUNT]  # what a reader is told of
    assert np.all(known <= least)
