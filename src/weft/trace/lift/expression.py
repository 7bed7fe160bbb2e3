"""Write small ops as Python expressions, with broadcasts and casts made explicit.

The rules that say what a PyTorch operator means read like its formula. Operands of one expression have one dtype; a
Python number takes that dtype; shapes broadcast as PyTorch's do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias, Union

import torch

from weft.ir.extents import Extent, is_same_size
from weft.ir.graph import Place, Value
from weft.ir.ops import build
from weft.ir.size_numbers import number_of
from weft.ir.types import NumberType, TensorType, contiguous

HALVES = frozenset({torch.float16, torch.bfloat16})
Number: TypeAlias = int | float | bool
Term: TypeAlias = Union["Expression", Number]


def wrapped(number: Number, dtype: torch.dtype) -> Number:
    """A number as PyTorch casts it to a dtype: to integers, without its fraction and its upper bits."""
    if isinstance(number, bool) or dtype.is_floating_point or dtype is torch.bool or not math.isfinite(number):
        return number
    limits = torch.iinfo(dtype)
    return (int(number) - limits.min) % (1 << limits.bits) + limits.min


@cache
def _constant_tensor(number: Number, text: str, dtype: torch.dtype) -> torch.Tensor:
    """One tensor for every number written in rules; the text keeps 0, 0.0, -0.0 and False apart."""
    del text
    return torch.tensor(wrapped(number, dtype), dtype=dtype)


def constant_tensor(number: Number, dtype: torch.dtype) -> torch.Tensor:
    """A number as a tensor of no dimensions, shared by all who ask: nobody changes it."""
    return _constant_tensor(number, str(number), dtype)


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which all of these broadcast."""
    rank = max(map(len, shapes), default=0)
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    return tuple(next((extent for extent in column if extent != 1), 1) for column in columns)


class Expression:
    """A tensor value that small ops are applied to; `place` is the user's line that new values belong to."""

    __slots__ = ("kind", "place", "value")

    def __init__(self, value: Value, place: Place | None) -> None:
        assert isinstance(value.type, TensorType)
        self.value = value
        self.kind: TensorType = value.type
        self.place = place

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.kind.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self.kind.shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.kind.rank

    # Element by element.

    def build(self, op: str, *others: Expression, **attributes: Any) -> Expression:
        """Apply an op as it is."""
        operands = (self.value, *(other.value for other in others))
        return Expression(build(op, *operands, place=self.place, **attributes), self.place)

    def apply(self, op: str, *others: Term) -> Expression:
        """Apply an elementwise op after broadcasting."""
        terms = [self, *(self.like(other) for other in others)]
        shape = broadcast_shape(*(term.shape for term in terms))
        first, *rest = (term.expand(shape) for term in terms)
        return first.build(op, *rest)

    def like(self, term: Term) -> Expression:
        """A number as a tensor of this dtype; an expression stays."""
        if isinstance(term, Extent):
            return scalar(number_of(term.expression, place=self.place), self.dtype, self.place)
        return term if isinstance(term, Expression) else constant(term, self.dtype, (), self.place)

    def choose(self, yes: Term, no: Term) -> Expression:
        """`yes` where this is true, else `no`; one of them is an expression."""
        known = yes if isinstance(yes, Expression) else no
        assert isinstance(known, Expression)
        return self.apply("select", known.like(yes), known.like(no))

    def cast(self, dtype: torch.dtype) -> Expression:
        """The same numbers in another dtype."""
        return self if dtype is self.dtype else self.build("cast", dtype=dtype)

    def wide(self) -> Expression:
        """The same numbers in the dtype that PyTorch's kernels compute in: float32 for the half precisions."""
        return self.cast(torch.float32) if self.dtype in HALVES else self

    def truth(self) -> Expression:
        """Whether each element is not zero."""
        return self if self.dtype is torch.bool else self.apply("ne", 0)

    def __neg__(self) -> Expression:
        return self.apply("neg")

    def __add__(self, other: Term) -> Expression:
        return self.apply("add", other)

    def __radd__(self, other: Number) -> Expression:
        return self.like(other).apply("add", self)

    def __sub__(self, other: Term) -> Expression:
        return self.apply("sub", other)

    def __rsub__(self, other: Number) -> Expression:
        return self.like(other).apply("sub", self)

    def __mul__(self, other: Term) -> Expression:
        return self.apply("mul", other)

    def __rmul__(self, other: Number) -> Expression:
        return self.apply("mul", other)

    def __truediv__(self, other: Term) -> Expression:
        return self.apply("div", other)

    def __rtruediv__(self, other: Number) -> Expression:
        return self.like(other).apply("div", self)

    # Moving elements.

    def expand(self, shape: tuple[int, ...]) -> Expression:
        """Repeat dimensions of size 1, and new ones in front."""
        return self if shape == self.shape else self.build("expand", shape=shape)

    def reshape(self, shape: tuple[int, ...]) -> Expression:
        """The same elements, row by row, in another shape."""
        return self if shape == self.shape else self.build("reshape", shape=shape)

    def permute(self, order: Sequence[int]) -> Expression:
        """Dimensions in another order."""
        order = tuple(order)
        return self if order == tuple(range(self.rank)) else self.build("permute", order=order)

    def transpose(self, first: int, second: int) -> Expression:
        """Two dimensions, perhaps counted from the end, exchanged."""
        order = list(range(self.rank))
        order[first], order[second] = order[second], order[first]
        return self.permute(order)

    def part(self, dimension: int, start: int, stop: int, step: int = 1) -> Expression:
        """Every step-th element of one dimension from start to before stop."""
        if (start, stop, step) == (0, self.shape[dimension], 1) and is_same_size(stop, self.shape[dimension]):
            return self
        starts, stops, steps = [0] * self.rank, list(self.shape), [1] * self.rank
        starts[dimension], stops[dimension], steps[dimension] = start, stop, step
        return self.build("slice", start=tuple(starts), stop=tuple(stops), step=tuple(steps))

    def pick(self, dimension: int, index: int) -> Expression:
        """One position of a dimension, which goes."""
        part = self.part(dimension, index, index + 1)
        return part.reshape((*self.shape[:dimension], *self.shape[dimension + 1 :]))

    def insert(self, dimension: int) -> Expression:
        """A new dimension of size 1."""
        return self.reshape((*self.shape[:dimension], 1, *self.shape[dimension:]))

    def join(self, others: Sequence[Expression], dimension: int) -> Expression:
        """This and others, one after the other."""
        return self if not others else self.build("concat", *others, dimension=dimension)

    def copy(self) -> Expression:
        """The same elements in memory of their own."""
        row = self if self.rank else self.reshape((1,))
        return row.build("concat", dimension=0).reshape(self.shape)

    # Reductions and products.

    def reduce(self, op: str, dimensions: Sequence[int], *, keep: bool = False) -> Expression:
        """Reduce dimensions."""
        found = tuple(sorted(dimensions))
        if not found:
            return self
        return self.build(op, dimensions=found, keep=keep)

    def sum(self, dimensions: Sequence[int], *, keep: bool = False) -> Expression:
        """The sum over dimensions, in this dtype."""
        return self.reduce("sum", dimensions, keep=keep)

    def mean(self, dimensions: Sequence[int], *, keep: bool = False) -> Expression:
        """The mean over dimensions."""
        return self.sum(dimensions, keep=keep) / as_divisor(self.count(dimensions))

    def count(self, dimensions: Sequence[int]) -> int:
        """How many elements a reduction over dimensions puts together."""
        found = 1
        for dimension in dimensions:
            found *= self.shape[dimension]
        return found

    def matmul(self, other: Expression) -> Expression:
        """The product of the last two dimensions."""
        return self.build("matmul", other)


def several(op: str, first: Expression, *others: Expression, **attributes: Any) -> tuple[Expression, ...]:
    """Apply an op that gives several tensors."""
    operands = (first.value, *(other.value for other in others))
    whole = build(op, *operands, place=first.place, **attributes)
    kinds = whole.type.items  # type: ignore[union-attr]  # the op's rule gives a tuple
    return tuple(
        Expression(build("item", whole, place=first.place, type=kind, index=index), first.place)
        for index, kind in enumerate(kinds)
    )


def constant(number: Number, dtype: torch.dtype, shape: tuple[int, ...], place: Place | None) -> Expression:
    """A number repeated over a shape."""
    attributes = MappingProxyType({"tensor": constant_tensor(number, dtype)})
    return Expression(Value("constant", (), contiguous(dtype, ()), attributes, place), place).expand(shape)


def table(tensor: torch.Tensor, place: Place | None) -> Expression:
    """A tensor known in advance."""
    kind = contiguous(tensor.dtype, tuple(tensor.shape))
    return Expression(Value("constant", (), kind, MappingProxyType({"tensor": tensor}), place), place)


def positions(
    shape: tuple[int, ...], dimension: int, place: Place | None, dtype: torch.dtype = torch.int64
) -> Expression:
    """Each element's position along a dimension."""
    return Expression(build("iota", place=place, shape=shape, dimension=dimension, dtype=dtype), place)


def as_divisor(count: int) -> Number:
    """A number of elements to divide by; one that varies stays what it is."""
    return count if isinstance(count, Extent) else float(count)


def scalar(number: Value, dtype: torch.dtype, place: Place | None) -> Expression:
    """A number that changes from call to call as a tensor of no dimensions."""
    assert isinstance(number.type, NumberType)
    return Expression(build("scalar", number, place=place, dtype=dtype), place)
