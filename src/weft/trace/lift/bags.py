"""EmbeddingBag: rows of a table, summed, averaged or compared in bags of neighbouring indices -> small ops.

Bags of one size, as a matrix of indices has them, are a dimension. Others are found from their offsets, which must rise
from 0 to the number of indices: PyTorch's operator runs where they do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from weft.trace.lift.arguments import Arguments, Rules
from weft.trace.lift.checks import check_places
from weft.trace.lift.expression import Expression, positions
from weft.trace.lift.indexing import column, flat

SUM, MEAN, MAX = 0, 1, 2


@dataclass(frozen=True)
class Bags:
    """The places of `count` bags in a list of indices: all of one size, or `ids` says to which each index belongs."""

    count: int
    size: int | None
    ids: Expression | None

    def sum(self, x: Expression) -> Expression:
        """The sum of what belongs to each bag, along the first dimension."""
        if self.size is not None:
            return x.reshape((self.count, self.size, *x.shape[1:])).sum((1,))
        return self._joined(x, "scatter_add", 0)

    def extreme(self, x: Expression, op: str, empty: float) -> Expression:
        """The smallest ("min") or largest ("max") that belongs to each bag."""
        if self.size:
            return x.reshape((self.count, self.size, *x.shape[1:])).reduce(op, (1,))
        return self._joined(x, f"scatter_{op}", empty)

    def spread(self, x: Expression) -> Expression:
        """A number for each bag, at each of its indices."""
        if self.size is not None:
            return x.insert(1).expand((self.count, self.size)).reshape((self.count * self.size,))
        assert self.ids is not None
        return x.build("take", self.ids, dimension=0)

    def _joined(self, x: Expression, op: str, empty: float) -> Expression:
        base = x.like(empty).expand((self.count, *x.shape[1:]))
        if self.ids is None:
            return base
        return base.build(op, column(base, self.ids, 0), x, dimension=0)


def bags_of(arguments: Arguments, indices: int) -> Bags:
    """Where the bags of a call are in its indices."""
    offsets = arguments.tensor("offsets")
    has_end = bool(arguments.literal("include_last_offset"))
    count = offsets.kind.size - has_end
    arguments.require(count >= 0, "without offsets")
    if (size := known_size(offsets, count, indices, has_end=has_end)) is not None:
        return Bags(count, size, None)
    offsets = offsets.cast(torch.int64)
    arguments.require(count > 0, "of no bags")
    last = offsets.part(0, offsets.kind.size - 1, offsets.kind.size)
    check_places(arguments, offsets.part(0, 0, 1), 1)
    if offsets.kind.size > 1:
        steps = offsets.part(0, 1, offsets.kind.size) - offsets.part(0, 0, offsets.kind.size - 1)
        check_places(arguments, steps, indices + 1)
    check_places(arguments, indices - last, 1 if has_end else indices + 1)
    if not indices:
        return Bags(count, None, None)
    places = positions((indices,), 0, arguments.place)
    return Bags(count, None, begun(offsets.part(0, 0, count), places) - 1)


def known_size(offsets: Expression, count: int, indices: int, *, has_end: bool) -> int | None:
    """The size of all bags, where constant offsets say that it is one."""
    if offsets.value.op != "constant" or not count or indices % count:
        return None
    tensor: torch.Tensor = offsets.value.attributes["tensor"]
    size = indices // count
    return size if torch.equal(tensor, torch.arange(count + has_end, dtype=tensor.dtype) * size) else None


def begun(offsets: Expression, places: Expression) -> Expression:
    """How many of rising offsets are at most each place, at least 1: found by halving."""
    count = offsets.kind.size
    found = places.like(1).expand(places.shape)
    step = 1 << (count - 1).bit_length() >> 1
    while step:
        further = found + step
        offset = offsets.build("take", further.apply("minimum", count) - 1, dimension=0)
        fits = further.apply("le", count).apply("logical_and", offset.apply("le", places))
        found = fits.choose(further, found)
        step >>= 1
    return found.apply("minimum", count)  # which it is; said for whoever asks whether an index can be out of range


def embedding_bag(arguments: Arguments) -> tuple[Expression | None, ...]:
    """One row for each bag; what only the gradient needs is left out."""
    arguments.require(arguments.unread >= {1, 2, 3}, "with more than its first result")
    weight, indices = arguments.tensors("weight", "indices")
    indices = flat(indices)
    bags = bags_of(arguments, indices.kind.size)
    padding = arguments.literal("padding_idx")
    is_padding = indices.apply("eq", padding) if padding >= 0 else None
    rows = weight.build("take", indices, dimension=0).wide()
    factors = arguments.maybe("per_sample_weights")
    if factors is not None:
        rows = rows * flat(factors).cast(rows.dtype).insert(1)
    if arguments.literal("mode") == MAX:
        return largest(bags, rows, is_padding), None, None, None
    found = bags.sum(rows if is_padding is None else is_padding.insert(1).choose(0, rows))
    if arguments.literal("mode") == MEAN:
        found = found / members(bags, indices, is_padding).apply("maximum", 1).cast(found.dtype).insert(1)
    return found, None, None, None


def members(bags: Bags, indices: Expression, is_padding: Expression | None) -> Expression:
    """How many indices count in each bag."""
    ones = indices.like(1).expand(indices.shape).cast(torch.int64)
    return bags.sum(ones if is_padding is None else is_padding.choose(0, ones))


def largest(bags: Bags, rows: Expression, is_padding: Expression | None) -> Expression:
    """The largest of each bag, 0 for an empty one; NaN if the first is NaN, for no other is larger, later ones not."""
    count = rows.shape[0]
    places = positions((count,), 0, rows.place)
    counted = places if is_padding is None else is_padding.choose(count, places)
    first = bags.extreme(counted, "min", count) if count else None
    if first is None:
        return rows.like(0).expand((bags.count, rows.shape[1]))
    later = counted.apply("gt", bags.spread(first)).apply("logical_or", counted.apply("ge", count)).insert(1)
    lost = later.apply("logical_and", rows.apply("isnan"))
    if is_padding is not None:
        lost = lost.apply("logical_or", is_padding.insert(1))
    found = bags.extreme(lost.choose(-math.inf, rows), "max", -math.inf)
    return first.apply("ge", count).insert(1).choose(0, found)


BAGS: Rules = {
    "aten._embedding_bag_forward_only.default": embedding_bag,
    "aten._embedding_bag.default": embedding_bag,
}
