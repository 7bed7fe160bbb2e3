"""Rebuild a Graph value by value at its largest sizes, by a table of rules; masks hide what is beyond."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import copysign, isfinite
from types import MappingProxyType
from typing import Any, Protocol

import torch

from weft.errors import UsageError
from weft.ir.at_sizes import has_extents
from weft.ir.extents import Extent, Polynomial
from weft.ir.graph import Graph, LiftedGraph, Value, Write
from weft.ir.ops import OPS, build
from weft.ir.size_numbers import number_of, size_of_number
from weft.ir.types import NumberType, TensorType, contiguous
from weft.passes.within import (
    Dimension,
    Found,
    UnboundedError,
    Within,
    all_of,
    any_varies,
    fixed,
    joined,
    prefix,
    size_of,
    varies,
)

CHECKS = "weft.check_"  # operators that raise because of data, and give nothing
Rule = Callable[["Bounder", Value], "Found"]
NOTHING_GIVEN: Mapping[Value, Within] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BoundedGraph:
    """A Graph of the largest sizes, and for each result in which parts of its dimensions the answer is.

    `sizes` are the values that hold a size: those that masks compare with, and those of the results.
    """

    graph: Graph
    within: tuple[Within, ...]
    sizes: Mapping[Value, Polynomial]


class LastResort(Protocol):
    """Computes calls for whose small ops there is no rule."""

    def rewrite(self, call: Value) -> None:
        """Give what stands for a call of an operator, or for one of its results, in another way."""

    def item(self, value: Value) -> Found | None:
        """One of several results, where they were computed in another way."""

    def gives(self, call: Value) -> bool:
        """Whether a call of the Graph before lifting is one of several results of a call in another way."""


def extreme(number: float, dtype: torch.dtype) -> float:
    """An infinity, as far as a dtype goes."""
    if dtype.is_floating_point or isfinite(number):
        return number
    if dtype is torch.bool:
        return number > 0
    limits = torch.iinfo(dtype)
    return limits.max if number > 0 else limits.min


class Bounder:
    """Rebuilds one Graph, call by call, each value by value."""

    def __init__(
        self,
        lifted: LiftedGraph,
        rules: Mapping[str, Rule],
        last_resort: Callable[[Bounder], LastResort],
        given: Mapping[Value, Within] = NOTHING_GIVEN,
    ) -> None:
        """`given` are inputs of which other elements than a prefix of each dimension are within."""
        self._given = given
        self.rules = rules
        self.lifted = lifted
        self.graph = lifted.graph
        self.now: dict[Value, Value] = {}
        self.within: dict[Value, Any] = {}  # a Within; of a value of several results one for each
        self.values: list[Value] = []
        self.larger: Mapping[Value, TensorType] = {}  # inputs in memory that is larger than they ever are
        self.own_rules: Mapping[Value, Rule] = {}
        self.in_largest: set[Value] = set()  # that hold places counted in the largest form of something
        self.grown: list[Write] = []  # of inputs in such memory
        self.zero_beyond: set[Value] = set()  # behind what counts of these there are zeros
        self.moved_inputs: set[Value] = set()  # whose elements are an input's, in another order
        self._numbers: dict[Polynomial, Value] = {}
        self._sizes: dict[tuple[Polynomial, torch.dtype], Value] = {}
        self._masks: dict[tuple[Dimension, int], Value] = {}
        self._last_resort = last_resort(self)

    def run(self) -> BoundedGraph:
        """Rebuild it."""
        for value in self.graph.inputs:
            new = replace(value, type=self.larger.get(value, fixed(value.type)))
            self.now[value] = new if value.type is not new.type and has_extents(value.type) else value
            if value in self._given:
                self.within[value] = self._given[value]
            elif isinstance(value.type, TensorType):
                self.within[value] = tuple(map(prefix, value.type.shape))
                self.moved_inputs.add(value)
        for call, values in self.lifted.values_of.items():
            self._rewrite_call(call, values)
        if any(has_extents(write.value.type) for write in self.graph.writes):
            raise UnboundedError("a tensor whose size varies is written into memory of the caller")
        grown = {write.value: write.input for write in self.grown}  # what is given back is what they were written into
        given = [self.now[result.value] for result in self.graph.results]
        found = [replace(result, value=grown.get(v, v)) for result, v in zip(self.graph.results, given, strict=True)]
        within = tuple(self.within.get(result.value, ()) for result in self.graph.results)
        for factor in (factor for one in within for dimension in one for factor in dimension):
            if factor.size is not None and factor.size.number is None:
                self.size(factor.size, torch.int32)
        graph = replace(
            self.graph,
            inputs=tuple(self.now[value] for value in self.graph.inputs),
            values=tuple(self.values),
            results=tuple(found),
            writes=(
                *(
                    replace(write, input=self.now[write.input], value=self.now[write.value])
                    for write in self.graph.writes
                ),
                *self.grown,
            ),
        )
        return BoundedGraph(graph, within, {value: size for (size, _), value in self._sizes.items()})

    def _rewrite_call(self, call: Value, values: tuple[Value, ...]) -> None:
        """Rebuild what a call became; where a rule refuses it, all of it is computed in another way."""
        now = self.lifted.now.get(call)
        if not values and now is not None and now not in self.now and self._last_resort.gives(call):
            self._last_resort.rewrite(call)  # it has no values of its own: the call's were its
            return
        before = len(self.values)
        try:
            for value in values:
                self._rewrite(value)
        except UsageError as error:
            del self.values[before:]
            kept = set(self.values)
            self._numbers = {size: value for size, value in self._numbers.items() if value in kept}
            self._sizes = {key: value for key, value in self._sizes.items() if value in kept}
            self._masks = {key: value for key, value in self._masks.items() if value in kept}
            for value in values:
                self.now.pop(value, None)
            self.moved_inputs.difference_update(values)  # what runs in another way has anything behind it
            try:
                self._last_resort.rewrite(call)
            except UnboundedError as other:
                raise UnboundedError(f"{error.fact}, and {other.fact}") from error

    def _rewrite(self, value: Value) -> None:
        if any(operand not in self.now for operand in value.operands):
            raise UnboundedError(f"{value.op} takes a part of what is computed in another way")
        kinds = [value.type, *(operand.type for operand in value.operands)]
        attributes = tuple(value.attributes.values())
        if not any(map(has_extents, (*kinds, attributes))) and not any(
            map(any_varies, (self.within.get(operand, ()) for operand in value.operands))
        ):
            new = value
            if any(self.now[operand] is not operand for operand in value.operands):
                new = replace(value, operands=tuple(self.now[operand] for operand in value.operands))
            self.now[value] = self.emit(new)
            self.within[value] = all_of(value.type)
            self._note_size(value, self.now[value])
            return
        found = self._last_resort.item(value) if value.op == "item" else None
        if found is not None:
            self.now[value], self.within[value] = found
            return
        if value.op == "library" and value.attributes["call"].target.startswith(CHECKS):
            call = value.attributes["call"]
            now = MappingProxyType({"call": replace(call, arguments=fixed(call.arguments))})
            operands = tuple(self._checked(value, operand) for operand in value.operands)
            self.now[value] = self.emit(replace(value, operands=operands, attributes=now))
            self.within[value] = ()
            return
        rule = self.own_rules.get(value) or self.rules.get("elementwise" if OPS[value.op].elementwise else value.op)
        if rule is None:
            call = value.attributes.get("call")
            raise UnboundedError(f"{call.target if call is not None else value.op} of sizes that vary has no rule")
        self.now[value], self.within[value] = rule(self, value)

    def _note_size(self, value: Value, new: Value) -> None:
        """Know a tensor that holds a size as code has written it: places may be below it."""
        kind = value.type
        if value.op != "scalar" or not isinstance(kind, TensorType) or kind.dtype not in (torch.int32, torch.int64):
            return
        numbers = (one for one in self.graph.inputs if isinstance(one.type, NumberType))
        size = size_of_number(value.operands[0], {one: Polynomial.atom(one) for one in numbers})
        if size is not None and size.number is None:
            self._sizes.setdefault((size, kind.dtype), new)

    def _checked(self, value: Value, operand: Value) -> Value:
        """What a check sees: in the place of what is beyond the first class, which there is."""
        if not isinstance(operand.type, TensorType):
            return self.now[operand]
        safe = self.safe_places(operand)
        _, size, *ignored = value.attributes["call"].arguments
        if not isinstance(size, Extent):
            return safe
        return self.guarded(safe, operand, size.expression, next((one for one in ignored if type(one) is int), None))

    # -- building -----------------------------------------------------------------------------------------------

    def emit(self, value: Value) -> Value:
        """Add a new value."""
        self.values.append(value)
        return value

    def build(self, op: str, *operands: Value, **given: Any) -> Value:
        """Add a new value of a type that follows from its operands."""
        return self.emit(build(op, *operands, **given))

    def again(self, value: Value, *operands: Value) -> Value:
        """Add the same value with other operands, of the largest sizes."""
        attributes = MappingProxyType({name: fixed(entry) for name, entry in value.attributes.items()})
        new = operands or tuple(self.now[operand] for operand in value.operands)
        return self.emit(replace(value, operands=new, type=fixed(value.type), attributes=attributes))

    def number(self, size: Polynomial) -> Value:
        """A size as a number of the Graph."""
        if size not in self._numbers:
            self._numbers[size] = number_of(size, self.now.__getitem__, self.emit)
        return self._numbers[size]

    def scalar(self, size: Polynomial, dtype: torch.dtype, shape: Sequence[int]) -> Value:
        """A size in every element."""
        constant = size.number
        if constant is not None:
            return self.constant(constant, dtype, shape)
        return self.spread(self.size(size, dtype), shape)

    def size(self, size: Polynomial, dtype: torch.dtype) -> Value:
        """A size as a tensor without dimensions."""
        key = (size, dtype)
        if key not in self._sizes:
            self._sizes[key] = self.build("scalar", self.number(size), dtype=dtype)
        return self._sizes[key]

    def constant(self, number: float, dtype: torch.dtype, shape: Sequence[int]) -> Value:
        """A number in every element."""
        tensor = torch.tensor(number, dtype=dtype)
        attributes = MappingProxyType({"tensor": tensor})
        return self.spread(self.emit(Value("constant", (), contiguous(dtype, ()), attributes)), shape)

    def spread(self, value: Value, shape: Sequence[int]) -> Value:
        """Repeat dimensions of size 1."""
        assert isinstance(value.type, TensorType)
        return value if value.type.shape == tuple(shape) else self.build("expand", value, shape=tuple(shape))

    def positions(self, size: int, dtype: torch.dtype = torch.int64) -> Value:
        """The numbers from 0 to before a size."""
        return self.build("iota", shape=(size,), dimension=0, dtype=dtype)

    def as_declared(self, new: Value, value: Value) -> Value:
        """A new value with the strides that the old one has."""
        kind = fixed(value.type)
        if new.type == kind:
            return new
        assert isinstance(kind, TensorType)
        return self.emit(replace(build("reshape", new, shape=kind.shape), type=kind))

    def stretched(self, value: Value, along: int, size: int) -> Value:
        """A value with anything behind it along one dimension."""
        assert isinstance(value.type, TensorType)
        more = tuple(size - kept if place == along else 0 for place, kept in enumerate(value.type.shape))
        return self.build("pad", value, low=(0,) * value.type.rank, high=more, value=0) if any(more) else value

    # -- masks --------------------------------------------------------------------------------------------------

    def mixed(self, value: Value, place: int) -> Dimension:
        """What is within of a dimension that is about to be mixed; what is the same everywhere counts as a prefix."""
        assert isinstance(value.type, TensorType)
        dimension: Dimension = self.within[value][place]
        size = value.type.shape[place]
        if isinstance(size, Extent) and not varies(dimension):
            return prefix(size)
        return dimension

    def masked(self, value: Value, dimensions: Sequence[int], filling: float, *, like: Value | None = None) -> Value:
        """A value with `filling` in the place of what is beyond in these dimensions, of itself or of another value."""
        new = self.now[value]
        if value in self.zero_beyond and (filling, copysign(1, filling)) == (0, 1) and like is None:
            return new
        if like is not None:
            value = like
        return self.filled(new, {place: self.mixed(value, place) for place in dimensions}, filling)

    def filled(self, new: Value, dimensions: Mapping[int, Dimension], filling: float) -> Value:
        """A new value with `filling` in the place of what is beyond in some of its dimensions."""
        assert isinstance(new.type, TensorType)
        mask = self.mask(dimensions, new.type.shape)
        if mask is None:
            return new
        return self.build("select", mask, new, self.constant(filling, new.type.dtype, new.type.shape))

    def mask(self, dimensions: Mapping[int, Dimension], shape: Sequence[int]) -> Value | None:
        """For each element of a shape, whether it is within in these dimensions; None where all are."""
        masks = []
        for place, dimension in dimensions.items():
            if varies(dimension):
                row = self.row_mask(dimension, shape[place])
                stretched = (*([1] * place), shape[place], *([1] * (len(shape) - place - 1)))
                if len(shape) > 1:
                    row = self.build("reshape", row, shape=stretched)
                masks.append(self.spread(row, shape))
        return reduce(lambda one, other: self.build("logical_and", one, other), masks) if masks else None

    def row_mask(self, dimension: Dimension, size: int) -> Value:
        """For each position of a dimension, whether it is within."""
        key = (dimension, size)
        if key not in self._masks:
            shape = tuple(factor.largest for factor in dimension)
            parts = [
                self.build(
                    "lt",
                    self.build("iota", shape=shape, dimension=place, dtype=torch.int32),
                    self.scalar(factor.size, torch.int32, shape),
                )
                for place, factor in enumerate(dimension)
                if factor.size is not None
            ]
            found = reduce(lambda one, other: self.build("logical_and", one, other), parts)
            self._masks[key] = found if len(shape) == 1 else self.build("reshape", found, shape=(size,))
        return self._masks[key]

    def safe_places(self, index: Value) -> Value:
        """Places to read at, where what is beyond may be any number: the first place there."""
        if index in self.moved_inputs:
            return self.now[index]  # the memory behind an input holds zeros, or places of an earlier call
        assert isinstance(index.type, TensorType)
        return self.masked(index, range(index.type.rank), 0)

    def guarded(self, safe: Value, index: Value, size: Polynomial, ignored: int | None = None) -> Value:
        """Places as they are safe to use, but that those from a call's own size on are in no range at all.

        The memory is larger than the size, and there would be such a place. Kernels check that there is none, and use
        the safe places. An `ignored` number is none.
        """
        assert isinstance(index.type, TensorType)
        shape, dtype = fixed(index.type.shape), index.type.dtype
        new = self.now[index]
        wrong = self.build("ge", new, self.scalar(size, dtype, shape))
        if ignored is not None:
            counts = self.build("ne", new, self.constant(ignored, dtype, shape))
            wrong = self.build("logical_and", wrong, counts)
        mask = self.mask({place: self.mixed(index, place) for place in range(len(shape))}, shape)
        if mask is not None:
            wrong = self.build("logical_and", mask, wrong)
        return self.build("select", wrong, self.constant(torch.iinfo(dtype).max, dtype, shape), safe)

    def single(self, value: Value, place: int) -> Polynomial:
        """The size of a dimension of which a prefix is within."""
        dimension = joined(self.mixed(value, place))
        if len(dimension) > 1:
            raise UnboundedError(f"{value.op} is taken apart along dimensions that vary and were merged")
        return size_of(dimension)
