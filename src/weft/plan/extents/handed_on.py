"""Follow what is needed back from region to region, through PyTorch's operators between them and from the results.

A region hands on what callers, other regions and operators read. Of a result only what is within counts; an operator
that runs at a call's own sizes is given what counts of its operands; another region says what it needs itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from weft.ir.extents import Polynomial
from weft.ir.graph import Graph, Value
from weft.ir.library import Operand
from weft.ir.size_numbers import size_of_number
from weft.ir.types import TensorType
from weft.passes.true_sizes import CUT
from weft.passes.within import Factor, Within, whole
from weft.plan.extents.parts import Parts, VaryingSizes, needed_by_both, parts_of
from weft.plan.regions.region import Region


class HandedOn:
    """What is needed of what regions hand out. Regions are asked about from the last to the first."""

    def __init__(self, graph: Graph, regions: Iterable[Region], varying: VaryingSizes) -> None:
        self._users = graph.users()
        self._native = {value for region in regions for value in region.values}
        self._roots = {*graph.roots()}
        self.varying = varying
        self._read: dict[Value, Parts] = {}  # by regions behind

    def note(self, value: Value, needed: Parts) -> None:
        """Note what a region needs of an input."""
        self._read[value] = needed_by_both(self._read.get(value), needed)

    def is_handed_on(self, value: Value) -> bool:
        """Whether an input of a region is made by another one."""
        return value in self._native

    def wanted(self, region: Region, value: Value, strides: Sequence[int]) -> Parts:
        """What is needed of an output, whose elements lie this far apart."""
        assert isinstance(value.type, TensorType)
        steps = [step * value.type.dtype.itemsize for step in strides]
        inside = {*region.values}
        found: Parts | None = None
        if value in self._roots:
            # Whole numbers are computed also beyond: a backward may read at such places.
            within = self.varying.within.get(value) if value.type.dtype.is_floating_point else None
            found = {} if within is None else parts_of(steps, within)
        for reader in self._users[value]:
            if reader not in inside:
                found = needed_by_both(found, self._needed_by(reader, value, steps))
        return found or {}

    def is_result_alone(self, region: Region, value: Value) -> bool:
        """Whether only callers read an output."""
        return value in self._roots and {*region.values}.issuperset(self._users[value])

    def is_read_alone(self, region: Region, value: Value) -> bool:
        """Whether an input is a region's alone."""
        return value not in self._roots and {*region.values}.issuperset(self._users[value])

    def _needed_by(self, reader: Value, value: Value, steps: Sequence[int]) -> Parts:
        if reader in self._native:
            return self._read.get(value, {})
        if reader.op == "library" and reader.attributes["call"].target == CUT:
            assert isinstance(value.type, TensorType)
            return parts_of(steps, self._cut_out(reader, value.type.shape))
        return {}

    def _cut_out(self, reader: Value, shape: Sequence[int]) -> Within:
        """What an operator is given of a tensor."""
        _, factors, sizes, *_ = reader.attributes["call"].arguments
        known = [self._size(reader, size) for size in sizes]
        found, place = [], 0
        for size in shape:
            first = place
            while place < len(factors) and (place == first or prod(factors[first:place]) < size):
                place += 1
            if prod(factors[first:place]) != size:
                return tuple(map(whole, shape))
            pairs = zip(factors[first:place], known[first:place], strict=True)
            found.append(tuple(Factor(largest, one) for largest, one in pairs))
        return tuple(found) if place == len(factors) else tuple(map(whole, shape))

    def _size(self, reader: Value, size: int | Operand) -> Polynomial | None:
        """A size that varies; None of one that does not, and where it is not known."""
        if not isinstance(size, Operand):
            return None
        return size_of_number(reader.operands[size.index], self.varying.numbers)
