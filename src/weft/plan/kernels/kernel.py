"""Define what every kind of kernel must say about itself: the facets that planning, printing and memory ask for.

A kind is a frozen dataclass derived from `Kernel`, in a file of its own in this room, and an emitter of machine code in
the room `codegen/kernels`. No facet has a default: a kernel of a kind that lacks one cannot be made. What a new kind
takes is told in docs/how-to-add-a-kernel-kind.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from weft.target import Target

Range = tuple[int, int]
Steps = tuple[int, list[tuple[int, int]]]  # an offset, and (stride, count) for each dimension


@dataclass(frozen=True, slots=True)
class ByteBox:
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

    def moved(self, distance: int) -> ByteBox:
        """Move the box by some bytes."""
        return ByteBox(self.low + distance, self.high + distance, self.steps, self.item) if distance else self


def box(offset: int, steps: Iterable[tuple[int, int]], item: int) -> ByteBox | None:
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
    return ByteBox(low, high, tuple(kept), item)


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


def disjoint(one: ByteBox, other: ByteBox) -> bool:
    """Tell whether two boxes of a buffer surely share no byte.

    Either one ends before the other begins, or both repeat with the same period and take different parts of it.
    """
    if one.high <= other.low or other.high <= one.low:
        return True
    for period in dict.fromkeys(stride for stride, _ in (*one.steps, *other.steps)):
        first, second = _part(one, period), _part(other, period)
        if first is not None and second is not None and not _meet(first, second, period):
            return True
    return False


def _part(whole: ByteBox, period: int) -> tuple[int, int] | None:
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


Boxes = tuple[ByteBox | None, ...]
Sizes = Sequence[int]

KINDS: dict[str, type[Kernel]] = {}
"""All kinds by name, as their classes are defined; the text of a plan names them so."""


class Kernel(ABC):
    """One native function, `void name(writes*..., reads*..., begin, end, ends...)`, which runs the tiles [begin, end).

    `ends` are dimensions whose loops end at counts that the caller gives: nothing beyond is computed, and what lies
    there of arguments is not read for anything that is stored. A kind without such dimensions has none.

    Any split of the tiles over calls, in any order, gives the same bits: lanes share them out. Arguments do not overlap
    except as `written_over` says. Buffers begin as the plan places them: a kernel may rely on its views' offsets alone.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Name the native function."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    @property
    @abstractmethod
    def tile_count(self) -> int:
        """Count the tiles; a kernel with nothing to do has none."""

    @property
    @abstractmethod
    def tile_sizes(self) -> tuple[Sizes, Sizes] | None:
        """Give the heights of tiles above each other and the widths of those side by side; None: all count alike.

        They are those of one matrix where there are several, one after the other.
        """

    @property
    @abstractmethod
    def cycles(self) -> float:
        """Estimate the cycles of all tiles on one core, with the data always at hand."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Say the sizes in a few words, for people."""

    @abstractmethod
    def boxes(self, begin: int, end: int) -> Boxes:
        """Give a box for each argument, in their order, that tiles [begin, end) touch: never less than they touch.

        None is anywhere in the argument. There is at least one tile.
        """

    @abstractmethod
    def renamed(self, name: str) -> Kernel:
        """Give the same kernel under another name; names made from it, of kernels inside, change alike."""

    @abstractmethod
    def written_over(self, output: int, read: int, target: Target) -> Kernel | None:
        """Give the kernel that may write an output in the place of what it reads, both by number; None if none may.

        It reads an element of that argument only where it writes the same one, and nothing of it after the write.
        """


def by(*sizes: int) -> str:
    """Spell sizes: 2x3x4."""
    return "x".join(map(str, sizes))
