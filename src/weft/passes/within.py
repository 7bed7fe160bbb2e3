"""Say which positions of dimensions count, where tensors are as large as sizes can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from weft.ir.at_sizes import has_extents
from weft.ir.extents import Extent, FixedSizeError, Polynomial, today
from weft.ir.graph import Value
from weft.ir.types import TensorType, TupleType, Type


class UnboundedError(FixedSizeError):
    """A Graph cannot be computed at its largest sizes."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A part of a dimension: as large as it can be, and what it is in a call; None where it does not vary."""

    largest: int
    size: Polynomial | None = None


Dimension = tuple[Factor, ...]  # the outermost factor first; none for a single element
Within = tuple[Dimension, ...]
Found = tuple[Value, Any]  # a value, and what of it is within: of each, where there are several


def whole(size: int) -> Dimension:
    """A dimension that does not vary."""
    return () if size == 1 else (Factor(today(size)),)


def prefix(size: int) -> Dimension:
    """A dimension of which, where it varies, the first positions count."""
    return (Factor(today(size), size.expression),) if isinstance(size, Extent) else whole(size)


def varies(dimension: Dimension) -> bool:
    """Whether a part of a dimension varies."""
    return any(factor.size is not None for factor in dimension)


def any_varies(within: Any) -> bool:
    """The same of some dimension of one of several values."""
    if isinstance(within, Factor):
        return within.size is not None
    return any(map(any_varies, within))


def joined(dimension: Dimension) -> Dimension:
    """The same with whole parts drawn into what is outside of them: 7 rows of 64 are a prefix of 448 elements."""
    found: list[Factor] = []
    for factor in dimension:
        if found and factor.size is None:
            last = found.pop()
            inner = None if last.size is None else last.size.times(Polynomial.constant(factor.largest))
            found.append(Factor(last.largest * factor.largest, inner))
        else:
            found.append(factor)
    return tuple(found)


def size_of(dimension: Dimension) -> Polynomial:
    """How many positions count."""
    sizes = (factor.size or Polynomial.constant(factor.largest) for factor in dimension)
    return reduce(Polynomial.times, sizes, Polynomial.constant(1))


def expression_of(size: int) -> Polynomial:
    """A size as what it is made of."""
    return size.expression if isinstance(size, Extent) else Polynomial.constant(size)


def all_of(kind: Type) -> Any:
    """What counts of a value whose sizes do not vary: everything."""
    if isinstance(kind, TupleType):
        return tuple(map(all_of, kind.items))
    return tuple(map(whole, kind.shape)) if isinstance(kind, TensorType) else ()


def fixed(thing: Any) -> Any:
    """The same with numbers in the place of sizes that vary: those that they are at most."""
    if isinstance(thing, Extent):
        return today(thing)
    if isinstance(thing, tuple):
        return tuple(map(fixed, thing))
    if isinstance(thing, TensorType):
        return replace(thing, shape=fixed(thing.shape), strides=fixed(thing.strides)) if has_extents(thing) else thing
    return TupleType(fixed(thing.items)) if isinstance(thing, TupleType) else thing


def merged(*given: Within) -> Within:
    """What is within of values whose elements are put together one by one.

    Their sizes are equal in every call, or PyTorch would refuse it: two prefixes are the same, however they are
    written.
    """
    found: list[Dimension] = []
    for column in zip(*given, strict=True):
        varying = [dimension for dimension in column if varies(dimension)]
        kinds = {joined(dimension) for dimension in varying}
        if len(kinds) > 1 and any(len(kind) > 1 for kind in kinds):
            raise UnboundedError("elements of dimensions that vary in different ways are put together")
        found.append(varying[0] if varying else column[0])
    return tuple(found)
