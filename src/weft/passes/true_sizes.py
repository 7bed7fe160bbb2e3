"""Run PyTorch's operators at the sizes of a call, inside a Graph of the largest sizes.

What there is no rule for is computed as eager does: the operands are cut to what counts of them, the operator gives
what it gives, and that goes to the beginning of larger memory. In between, sizes are known only when the program runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from weft.errors import ExecutionError
from weft.ir.at_sizes import has_extents
from weft.ir.extents import Extent, Polynomial, today
from weft.ir.graph import Value
from weft.ir.library import Call, Operand, ViewStep, is_fresh, map_arguments
from weft.ir.sharing import looks_elsewhere
from weft.ir.types import TensorType, TupleType, Type, UnsizedType, strides_in
from weft.passes.bounding import Bounder
from weft.passes.within import (
    Dimension,
    Found,
    UnboundedError,
    all_of,
    expression_of,
    fixed,
    prefix,
    varies,
)


class UnforeseenSizesError(ExecutionError):
    """An operator has given a tensor of other sizes than PyTorch's rule for them says."""


CUT = "weft.cut_to_sizes.default"
PUT = "weft.put_in_largest.default"
LAZY = ("aten._conj.default", "aten._neg_view.default")
"""Views whose numbers are not those in memory: what is put in larger memory would be plain."""
LIBRARY = torch.library.Library("weft", "FRAGMENT")
LIBRARY.define("cut_to_sizes(Tensor(a) x, int[] factors, int[] sizes, int[] shape, int[] order) -> Tensor(a)")
LIBRARY.define("put_in_largest(Tensor x, int[] sizes, int[] shape, int[] strides) -> Tensor")


def cut_to_sizes(
    x: torch.Tensor, factors: Sequence[int], sizes: Sequence[int], shape: Sequence[int], order: Sequence[int]
) -> torch.Tensor:
    """What counts of a tensor; with an order of dimensions, the outermost first, it lies in memory so.

    A dimension whose elements have something between them is there as `~place`; all others have not.
    """
    part = _first_of(x if len(factors) == x.dim() else x.reshape(list(factors)), sizes)
    if len(factors) != len(shape):
        part = part.reshape(list(shape))
    if not order:
        return part
    if min(order) < 0:
        if _lies_with_gaps(part, order):
            return part
        strides = _strides_with_gaps(shape, order)
    else:
        strides = strides_in(tuple(shape), order)
        if part.stride() == strides:
            return part
    return torch.empty_strided(list(shape), strides, dtype=x.dtype, device=x.device).copy_(part)


def _lies_with_gaps(part: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether a tensor lies in this order, with gaps where these are to be, and nowhere else."""
    closest = 1
    for place in reversed(order):
        at = max(place, ~place)
        step, size = part.stride(at), part.shape[at]
        if size != 1:
            if step < closest or (step > closest) != (place < 0):
                return False
            closest = step * size
    return True


def _strides_with_gaps(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides in an order of dimensions, in which each gap is as small as gaps can be."""
    strides, closest = [0] * len(shape), 1
    for place in reversed(order):
        at = max(place, ~place)
        strides[at] = closest + (place < 0)
        closest = strides[at] * max(shape[at], 1)
    return tuple(strides)


def _first_of(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The first elements of each dimension."""
    if tuple(x.shape) == tuple(sizes):
        return x
    return x.as_strided(sizes, x.stride(), x.storage_offset())


def put_in_largest(x: torch.Tensor, sizes: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A tensor at the beginning of larger memory; what is behind it is anything."""
    if tuple(x.shape) != tuple(sizes):
        raise UnforeseenSizesError(
            f"an operator gave a tensor of sizes {list(x.shape)}, where it was to have {list(sizes)}"
        )
    memory = torch.empty_strided(list(shape), list(strides), dtype=x.dtype, device=x.device)
    part = _first_of(memory, sizes)
    for dimension, (size, step) in enumerate(zip(shape, strides, strict=True)):
        if step == 0 and size > 1 and x.shape[dimension]:  # the same number at all places, which is written once
            part, x = part.narrow(dimension, 0, 1), x.narrow(dimension, 0, 1)
    part.copy_(x)
    return memory


LIBRARY.impl("cut_to_sizes", cut_to_sizes, "CompositeExplicitAutograd")
LIBRARY.impl("put_in_largest", put_in_largest, "CompositeExplicitAutograd")


class _Written:
    """The arguments of a call, while they are written down: operands, and sizes as numbers."""

    def __init__(self, bounder: Bounder, operands: Sequence[Value] = ()) -> None:
        self.bounder = bounder
        self.operands = list(operands)

    def size(self, size: Polynomial) -> Any:
        """A size as an argument."""
        number = size.number
        if number is not None:
            return number
        self.operands.append(self.bounder.number(size))
        return Operand(len(self.operands) - 1)

    def argument(self, leaf: Any) -> Any:
        """A leaf of an argument: sizes that vary are numbers of the Graph."""
        return self.size(leaf.expression) if isinstance(leaf, Extent) else leaf

    def keywords(self, keywords: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
        """Arguments by name."""
        return tuple((name, map_arguments(argument, self.argument)) for name, argument in keywords)

    def step(self, step: ViewStep) -> ViewStep:
        """A view that is written to."""
        arguments = map_arguments(step.arguments, self.argument)
        return replace(step, arguments=arguments, keywords=self.keywords(step.keywords))


class TrueSizes:
    """Runs calls at the sizes of a call, within one Graph that is being rebuilt."""

    def __init__(self, bounder: Bounder) -> None:
        self.bounder = bounder
        self._results: dict[Value, Value] = {}  # of calls, before anything is put into larger memory
        self._calls: dict[Value, Value] = {}  # of values of the lifted Graph that are such calls
        self._given: dict[Value, tuple[Value, TensorType]] = {}  # what operators gave, by where it is in larger memory

    def rewrite(self, call: Value) -> None:
        """Run a call of an operator, or take one of its results."""
        now = self.bounder.lifted.now
        if call.op == "item":
            whole = call.operands[0]
            self._place(now[call], self._item(self._run(whole), whole.type, call.attributes["index"]))
            return
        new = self._run(call)
        if isinstance(call.type, TupleType):
            if call in now:
                self._calls[now[call]] = call
                self.bounder.now[now[call]], self.bounder.within[now[call]] = new, ()
            return
        self._place(now[call], self._largest(new, call.type))

    def gives(self, call: Value) -> bool:
        """Whether a call of the Graph before lifting is one of several results of a call that runs so."""
        return call.op == "item" and call.operands[0] in self._results

    def item(self, value: Value) -> Found | None:
        """One of several results of a call that runs so."""
        call = self._calls.get(value.operands[0])
        if call is None:
            return None
        return self._item(self._results[call], call.type, value.attributes["index"])

    def _place(self, value: Value, found: Found) -> None:
        self.bounder.now[value], self.bounder.within[value] = found

    def _item(self, whole: Value, kinds: Type, index: int) -> Found:
        assert isinstance(kinds, TupleType)
        kind = kinds.items[index]
        part = Value("item", (whole,), _unsized(kind), MappingProxyType({"index": index}), whole.place)
        return self._largest(self.bounder.emit(part), kind)

    def _largest(self, new: Value, kind: Type) -> Found:
        """A result in memory of its largest size."""
        if not has_extents(kind):
            return new, all_of(kind)
        assert isinstance(kind, TensorType)
        written = _Written(self.bounder, [new])
        sizes = tuple(written.size(expression_of(size)) for size in kind.shape)
        largest = fixed(kind)
        call = Call(PUT, (Operand(0), sizes, largest.shape, largest.strides))
        found = self._library(call, written.operands, largest, new)
        self._given[found] = new, kind
        return found, tuple(map(prefix, kind.shape))

    def _run(self, value: Value) -> Value:
        """The call with operands of their true sizes."""
        if value in self._results:
            return self._results[value]
        if value.op not in ("library", "update"):
            raise UnboundedError(f"{value.op} is no call of an operator")
        call: Call = value.attributes["call"]
        if call.target in LAZY:
            raise UnboundedError(f"{call.target} gives a tensor that is to be conjugated when it is read")
        if looks_elsewhere(call, value.operands):
            raise UnboundedError(f"{call.target} reads memory as such")
        now = self.bounder.lifted.now
        cut = [self._cut(now.get(operand, operand), is_fresh(call.target)) for operand in value.operands]
        written = _Written(self.bounder, cut)
        again = Call(
            call.target,
            map_arguments(call.arguments, written.argument),
            written.keywords(call.keywords),
            tuple(replace(place, path=tuple(map(written.step, place.path))) for place in call.written),
        )
        new = Value(
            value.op, tuple(written.operands), _unsized(value.type), MappingProxyType({"call": again}), value.place
        )
        self._results[value] = self.bounder.emit(new)
        return new

    def _cut(self, operand: Value, with_gaps: bool) -> Value:
        """What counts of an operand; a view of it need not be possible where gaps are, so there it has none."""
        if operand not in self.bounder.now:
            raise UnboundedError("an operand is not there as such")
        if operand in self.bounder.in_largest:
            raise UnboundedError("an operand holds places in the largest form of an image")
        new, kind = self.bounder.now[operand], operand.type
        given, as_given = self._given.get(new, (None, None))
        if given is not None and is_same_layout(as_given, kind):
            return given
        if not isinstance(kind, TensorType) or not (
            has_extents(kind) or any(map(varies, self.bounder.within[operand]))
        ):
            return new
        dimensions = [_factors(self.bounder, operand, place) for place in range(kind.rank)]
        written = _Written(self.bounder, [new])
        parts = [factor for dimension in dimensions for factor in dimension]
        for _, size in parts:
            if size.number is None:
                self.bounder.size(size, torch.int32)  # kernels compute no more of it than is needed
        factors = tuple(largest for largest, _ in parts)
        sizes = tuple(written.size(size) for _, size in parts)
        shape = tuple(written.size(expression_of(size)) for size in kind.shape)
        call = Call(CUT, (Operand(0), factors, sizes, shape, _order(kind, with_gaps)))
        return self._library(call, written.operands, UnsizedType(kind.dtype, kind.device), new)

    def _library(self, call: Call, operands: Sequence[Value], kind: Type, like: Value) -> Value:
        attributes = MappingProxyType({"call": call})
        return self.bounder.emit(Value("library", tuple(operands), kind, attributes, like.place))


def is_same_layout(one: Type | None, other: Type) -> bool:
    """Whether tensors have the same sizes and strides at every call."""
    if not (isinstance(one, TensorType) and isinstance(other, TensorType)) or one.rank != other.rank:
        return False
    pairs = zip((*one.shape, *one.strides), (*other.shape, *other.strides), strict=True)
    return one.dtype is other.dtype and all(expression_of(size) == expression_of(same) for size, same in pairs)


def _order(kind: TensorType, with_gaps: bool) -> tuple[int, ...]:
    """The dimensions of an operand as `cut_to_sizes` takes them; none where elements stand for several.

    Operators ask whether an operand is contiguous, and what they give depends on the answer (`linalg.det` gives factors
    of the matrix or of its transpose); a backward was traced with eager's answer.
    """
    steps = [(today(step), today(size)) for step, size in zip(kind.strides, kind.shape, strict=True)]
    if any(step == 0 and size > 1 for step, size in steps):
        return ()
    order, closest = [], Polynomial.constant(1)
    for place in sorted(range(kind.rank), key=lambda place: (steps[place][0], steps[place][1], -place)):
        size, step = expression_of(kind.shape[place]), expression_of(kind.strides[place])
        order.append(~place if with_gaps and size.number != 1 and step != closest else place)
        closest = closest if size.number == 1 else step.times(size)
    return tuple(reversed(order))


def _factors(bounder: Bounder, value: Value, place: int) -> list[tuple[int, Polynomial]]:
    """The parts of a dimension, the outermost first: how large each can be, and is."""
    assert isinstance(value.type, TensorType)
    dimension: Dimension = bounder.mixed(value, place)
    size = value.type.shape[place]
    if not varies(dimension):
        return [(today(size), Polynomial.constant(today(size)))]
    return [(factor.largest, factor.size or Polynomial.constant(factor.largest)) for factor in dimension]


def _unsized(kind: Type) -> Type:
    """The type of a result before it is put into larger memory."""
    if isinstance(kind, TupleType):
        return TupleType(tuple(map(_unsized, kind.items)))
    return UnsizedType(kind.dtype, kind.device) if isinstance(kind, TensorType) and has_extents(kind) else kind
