"""Say which calls of a kind have sizes within a range: those of one program, or of paths that read their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from weft.ir.types import order_of, strides_in
from weft.trace.request import Request
from weft.trace.signature import Key
from weft.trace.size_symbols import AskedSizes, SizesToRead
from weft.trace.size_ties import Group, SizeSpot, SizeTie, shape_of

SMALLEST = 2  # sizes of 1 are broadcast, and nothing is computed of sizes of 0
Shapes = Mapping[int, tuple[int, ...]]  # of the tensors among the arguments
Sizes = Mapping[int, frozenset[int]]  # of tensors among the arguments: dimensions
Ties = Mapping[SizeSpot, SizeTie]


@dataclass(frozen=True, slots=True)
class SizeSpan:
    """The sizes that a dimension may have, in the place of one in a signature."""

    least: int
    most: int

    def __repr__(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class DimensionOrder:
    """The order in which dimensions lie in memory, in the place of strides in a signature."""

    places: tuple[int, ...]

    def __repr__(self) -> str:
        return "rows" if list(self.places) == sorted(self.places) else f"those of dimensions in the order {self.places}"


def order_in(leaf: Key) -> tuple[int, ...] | None:
    """The order of a tensor's dimensions in memory, by its signature or by that of a range; None with gaps."""
    strides = leaf[3]
    return strides.places if isinstance(strides, DimensionOrder) else order_of(tuple(leaf[2]), tuple(strides))


@dataclass(frozen=True, slots=True, eq=False)
class SizeRange:
    """What the sizes of a call must be like."""

    tops: Shapes
    strides: Mapping[int, tuple[int, ...]]  # of tensors of which no size varies
    varying: Sizes
    alike: tuple[Group, ...]  # places that must have the same size
    ties: Ties  # sizes that must be made of others
    orders: Mapping[int, tuple[int, ...]]  # of dimensions in memory, of tensors that vary

    def takes(self, leaves: Sequence[Any]) -> bool:
        """Whether the sizes of a call of the kind are in range."""
        for position in self.tops.keys() - self.varying.keys():
            leaf = leaves[position]
            if shape_of(leaf) != self.tops[position]:
                return False
            if position in self.strides and leaf.stride() != self.strides[position]:
                return False
        return self.takes_sizes(dict(enumerate(leaves)))

    def takes_sizes(self, leaves: Mapping[int, Any]) -> bool:
        """Whether tensors that vary are in range, where everything else is as it was."""
        for position, dimensions in self.varying.items():
            if position not in self.tops:
                continue
            leaf = leaves[position]
            shape = shape_of(leaf)
            for dimension, (size, most) in enumerate(zip(shape, self.tops[position], strict=True)):
                if not (SMALLEST <= size <= most if dimension in dimensions else size == most):
                    return False
            if isinstance(leaf, torch.Tensor) and leaf.stride() != strides_in(shape, self.orders[position]):
                return False
        return self._agree(leaves)

    def _agree(self, leaves: Mapping[int, Any]) -> bool:
        """Whether sizes that are to be the same, or made of others, are so."""

        def size_of(spot: SizeSpot) -> int:
            return shape_of(leaves[spot[0]])[spot[1]]

        for first, *others in self.alike:
            if any(size_of(other) != size_of(first) for other in others):
                return False
        return all(size_of(spot) == tie.size(size_of) for spot, tie in self.ties.items())

    @property
    def volume(self) -> int:
        """How large its sizes are, compared with other ranges of the kind."""
        return prod(self.tops[place][at] for place, some in self.varying.items() for at in some)

    def asked(self, request: Request) -> Request:
        """The same request for a path that reads the sizes: of those that are the same, one."""
        spots = [(place, at) for place, some in sorted(self.varying.items()) for at in sorted(some)]
        first = {spot: spot for spot in spots} | {spot: group[0] for group in self.alike for spot in group}
        largest = {(place, at): self.tops[place][at] for place, at in spots}
        asked = AskedSizes(self.varying, self.ties)
        return replace(request, sizes=asked, sizes_read=SizesToRead(first, largest))

    def key_of(self, key: Key) -> Key:
        """The signature that all calls in range share, for one of such a call."""
        structure, leaves, *others = key
        return (structure, tuple(self._any(place, leaf) for place, leaf in enumerate(leaves)), *others)

    def _any(self, place: int, leaf: Key) -> Key:
        some = self.varying.get(place)
        if not some:
            return leaf
        shape = tuple(SizeSpan(SMALLEST, size) if at in some else size for at, size in enumerate(self.tops[place]))
        return (*leaf[:2], shape, DimensionOrder(self.orders[place]), *leaf[4:]) if place in self.orders else leaf

    def describe(self, arguments: Sequence[str], names: Mapping[SizeSpot, str]) -> str:
        """Say which sizes it takes; `arguments` are the names of the leaves, `names` those that users gave to sizes."""
        spots: dict[SizeSpot, list[SizeSpot]] = {}
        for place, at in ((place, at) for place, some in sorted(self.varying.items()) for at in sorted(some)):
            if (place, at) in self.ties:
                continue  # it follows from others
            group = next((group for group in self.alike if (place, at) in group), ((place, at),))
            spots.setdefault(group[0], []).append((place, at))
        found = []
        for first, members in spots.items():
            where = ", ".join(f"dim {at} of {arguments[place]}" for place, at in members)
            span, name = SizeSpan(SMALLEST, self.tops[first[0]][first[1]]), names.get(first)
            found.append(f"{span} in {where}" if name is None else f"{name} {span} ({where})")
        return "; ".join(found)
