"""Buffers, and which of them may not share bytes -> a place for each, so that together they take little room.

Where a try reaches too high, the buffer at its top is placed earlier in the next one: what is placed early lies low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_TRIES = 64
MOST_LOOKS = 200_000  # at buffers that may not share bytes with the one to place, in all tries


@dataclass(frozen=True, slots=True)
class Buffers:
    """Sizes of buffers by number, and for each those that may not share bytes with it."""

    sizes: Mapping[int, int]
    apart: Mapping[int, Sequence[int]]


def fit(buffers: Buffers, sequences: Sequence[Sequence[int]], least: int) -> tuple[dict[int, int], int]:
    """Place buffers, trying some sequences first, and give their offsets and where they end; never below `least`."""
    tries = [_placed(buffers, sequence) for sequence in sequences]
    best, sequence = min(zip(tries, sequences, strict=True), key=lambda one: one[0][1])
    looks = sum(map(len, buffers.apart.values()))
    found = best
    for count in range(min(MOST_TRIES, MOST_LOOKS // max(looks, 1)) - len(tries)):
        if best[1] <= least:
            break
        sequence = _with_top_first(buffers, sequence, found, whole=count % 2 == 1)
        found = _placed(buffers, sequence)
        best = min(best, found, key=lambda one: one[1])
    return best


def _placed(buffers: Buffers, sequence: Sequence[int]) -> tuple[dict[int, int], int]:
    """Put each buffer into the smallest gap that those it may not overlap leave, or behind them all."""
    # The innermost loop of planning: without calls of functions it takes half as long.
    offsets: dict[int, int] = {}
    ends: dict[int, int] = {}
    total = 0
    for number in sequence:
        size = buffers.sizes[number]
        blocking = [(offsets[other], ends[other]) for other in buffers.apart[number] if other in offsets]
        blocking.sort()
        covered, place, smallest = 0, -1, -1
        for offset, end in blocking:
            gap = offset - covered
            if gap >= size and (place < 0 or gap < smallest):
                place, smallest = covered, gap
            if end > covered:  # noqa: PLR1730  # a call of max takes five times as long
                covered = end
        offsets[number] = start = covered if place < 0 else place
        ends[number] = end = start + size
        total = max(total, end)
    return offsets, total


def _with_top_first(
    buffers: Buffers, sequence: Sequence[int], found: tuple[dict[int, int], int], *, whole: bool
) -> list[int]:
    """A sequence with the buffer that reaches highest before all others, or just before those it may not overlap."""
    offsets, total = found
    top = next(number for number in sequence if offsets[number] + buffers.sizes[number] == total)
    again = [number for number in sequence if number != top]
    apart = set(buffers.apart[top])
    place = 0 if whole else next((at for at, number in enumerate(again) if number in apart), 0)
    return [*again[:place], top, *again[place:]]
