"""Say from which size on positions of a buffer are needed, dimension by dimension.

A `Part` of a buffer says from which size on each position of a dimension is needed, as far as the buffer is seen as
rows of so many positions, `stride` bytes apart. That is sound for any stride and count: what a box of bytes covers of
the positions is asked of the box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.passes.within import Within
from weft.plan.kernels.kernel import ByteBox

NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """From which size on the positions of a dimension are needed: position i where the size is above `least[i]`."""

    stride: int
    size: Polynomial
    least: NDArray[np.int32]

    @property
    def key(self) -> PartKey:
        """Which dimension it is of, and by which size."""
        return (self.stride, len(self.least), self.size)

    def of(self, found: ByteBox) -> int:
        """The least size, less one, for which something of a box is needed."""
        first, last = positions_of(found, self.stride, len(self.least))
        return int(self.least[first : last + 1].min())


@dataclass(frozen=True, slots=True, eq=False)
class VaryingSizes:
    """What varies of a Graph of the largest sizes: the inputs that hold a size, what counts of its roots and inputs.

    `numbers` are the inputs that are sizes of a call. `dense` are inputs and roots that come and go as tensors of a
    call's sizes, with their strides where these lie without gaps.
    """

    holders: Mapping[Value, Polynomial]
    within: Mapping[Value, Within]
    inputs: Mapping[Value, Within] = field(default_factory=dict)
    numbers: Mapping[Value, Polynomial] = field(default_factory=dict)
    dense: Mapping[Value, tuple[Polynomial, ...]] = field(default_factory=dict)


PartKey = tuple[int, int, Polynomial]
"""A dimension of a buffer: how many bytes its positions are apart, how many there are, and by which size it ends."""

Parts = dict[PartKey, Part]
"""Of a buffer: all must find that an element is needed. Without any, all of it is needed always."""


def needed_by_both(before: Parts | None, parts: Parts) -> Parts:
    """What is needed where either says so; None: there was no reader before."""
    if before is None:
        return parts
    both = before.keys() & parts.keys()
    return {key: replace(parts[key], least=np.minimum(parts[key].least, before[key].least)) for key in both}


def parts_of(strides: Sequence[int], within: Within) -> Parts:
    """Say what counts of a result whose dimensions step by so many bytes.

    What lies in a gap, behind the positions of a dimension and before the next of those around it, nobody needs. A
    dimension whose gaps are no whole positions, or whose elements lie among those of others, is needed always.
    """
    found: Parts = {}
    counts = [prod(factor.largest for factor in factors) for factors in within]
    for place, (stride, factors) in enumerate(zip(strides, within, strict=True)):
        if stride <= 0 or all(factor.size is None for factor in factors):
            continue
        others = [(strides[at], counts[at]) for at in range(len(counts)) if at != place and counts[at] > 1]
        if sum(step * (count - 1) for step, count in others if step < stride) >= stride:
            continue
        inner, whole = counts[place], counts[place] * stride
        period = gcd(*(step for step, _ in others if step >= stride)) or whole
        outermost = whole // max(factors[0].largest, 1)
        if period < whole or period % max(outermost, 1):
            continue
        for number, factor in enumerate(factors):
            inner //= max(factor.largest, 1)
            if factor.size is not None:
                least = np.arange(factor.largest, dtype=np.int32)
                if not number:
                    gap = period // max(outermost, 1) - factor.largest
                    least = np.concatenate([least, np.full(gap, NEVER, np.int32)])
                part = Part(stride * inner, factor.size, least)
                found[part.key] = part
    return found


def positions_of(found: ByteBox, stride: int, count: int) -> tuple[int, int]:
    """Give the first and the last position that bytes of a box have in rows of so many, `stride` bytes apart."""
    period, high = stride * count, found.low + found.item
    for step, times in found.steps:
        if step % period:
            high += step * (times - 1)
    first, last = found.low // stride, (high - 1) // stride
    return (first % count, last % count) if first // count == last // count else (0, count - 1)
