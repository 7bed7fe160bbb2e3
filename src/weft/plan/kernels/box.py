"""Evenly spaced bytes of a buffer -> whether two such sets surely have no byte in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

Range = tuple[int, int]
Steps = tuple[int, list[tuple[int, int]]]  # an offset, and (stride, count) for each dimension


@dataclass(frozen=True, slots=True)
class Box:
    """Items of `item` bytes at low + i * strides[0] + j * strides[1] + ..., for all i, j below their counts.

    `steps` are (stride, count) with positive strides, the largest first, and counts above 1; `high` is the byte behind
    the last.
    """

    low: int
    high: int
    steps: tuple[tuple[int, int], ...]
    item: int

    @property
    def bytes(self) -> int:
        """Count the bytes; items that overlap count twice."""
        return self.item * prod(count for _, count in self.steps)

    def moved(self, distance: int) -> Box:
        """Move the box by some bytes."""
        return Box(self.low + distance, self.high + distance, self.steps, self.item) if distance else self


def box(offset: int, steps: Iterable[tuple[int, int]], item: int) -> Box | None:
    """Make the box of items at an offset, with strides of any sign, all in items; None where there are none."""
    low, kept = offset * item, []
    for stride, count in steps:
        if count == 0:
            return None
        if stride == 0 or count == 1:
            continue
        if stride < 0:
            low += stride * item * (count - 1)
        kept.append((abs(stride) * item, count))
    if len(kept) > 1:
        kept.sort(reverse=True)
    # Items side by side are one longer item.
    while kept and kept[-1][0] == item:
        item *= kept.pop()[1]
    high = low + item
    for stride, count in kept:
        high += stride * (count - 1)
    return Box(low, high, tuple(kept), item)


def cut_range(sizes: Sequence[int], strides: Sequence[int], first: int, last: int) -> Steps:
    """Give the steps through points [first, last) of a space, counted row by row; whole rows where it is not one row.

    The last dimensions that a range cuts through at both ends may be taken larger than they are.
    """
    offset = 0
    for place, size in enumerate(sizes):
        inner = prod(sizes[place + 1 :])
        start, stop = first // inner if inner else 0, -(-last // inner) if inner else 0
        offset += start * strides[place]
        if stop - start > 1 or place == len(sizes) - 1:
            rest = zip(strides[place + 1 :], sizes[place + 1 :], strict=True)
            return offset, [(strides[place], min(stop, size) - start), *rest]
        first, last = first - start * inner, last - start * inner
    return offset, []


def disjoint(one: Box, other: Box) -> bool:
    """Tell whether two boxes of a buffer surely share no byte.

    Either one ends before the other begins, or both repeat with the same period and take different parts of it.
    """
    if one.high <= other.low or other.high <= one.low:
        return True
    for period in {stride for stride, _ in one.steps} | {stride for stride, _ in other.steps}:
        first, second = _part(one, period), _part(other, period)
        if first is not None and second is not None and not _meet(first, second, period):
            return True
    return False


def _part(whole: Box, period: int) -> tuple[int, int] | None:
    """Give the start and length of the part of each period that a box lies in; None where it may be anywhere."""
    length = whole.item
    for stride, count in whole.steps:
        if stride < period:
            length += stride * (count - 1)
        elif stride % period:
            return None
    return (whole.low % period, length) if length <= period else None


def _meet(one: tuple[int, int], other: tuple[int, int], period: int) -> bool:
    """Tell whether two arcs of a circle share a point."""
    (first, length), (second, other_length) = one, other
    return (second - first) % period < length or (first - second) % period < other_length
