"""Follow parts of dimensions, of which some vary and some are repeated, through reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ir.extents import Extent, today
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.passes.bounding import Bounder
from weft.passes.within import (
    Dimension,
    Factor,
    Found,
    UnboundedError,
    expression_of,
    prefix,
    size_of,
    varies,
    whole,
)


def reshape(bounder: Bounder, value: Value) -> Found:
    """Parts of dimensions go to the dimension that they become a part of.

    There are as many elements before as behind, or PyTorch would refuse it: where dimensions are only cut, or only put
    together, nothing is left over. So s//4 times 4 are all of s there.
    """
    (operand,) = value.operands
    assert isinstance(value.type, TensorType)
    if operand in bounder.moved_inputs:
        bounder.moved_inputs.add(value)
    if 0 in map(today, value.type.shape):
        raise UnboundedError("a reshape of no elements follows no dimensions")
    waiting = _factors_of(bounder, operand)
    found: list[Dimension] = []
    is_cut = is_joined = False
    for size in value.type.shape:
        parts: list[_Part] = []
        missing = today(size)
        while missing > 1:
            if not waiting:
                raise UnboundedError("a reshape does not follow dimensions that vary")
            part = waiting.pop(0)
            if missing % part.factor.largest == 0:
                parts.append(part)
                missing //= part.factor.largest
            else:
                outer, inner = _split(part.factor, missing)
                is_cut = is_cut or size_of((outer, inner)) != size_of((part.factor,))
                repeated = None if part.repeated is None else ()
                parts.append(_Part(outer, repeated))
                waiting.insert(0, _Part(inner, repeated))
                missing = 1
        dimension = _dimension_of(parts, size)
        if varies(dimension) and (now := size_of(dimension)) != expression_of(size):
            is_joined = True
            if is_cut or now.undivided() != expression_of(size):
                raise UnboundedError(f"a reshape makes a dimension of {size} of one of {now}")
        found.append(dimension)
    if is_cut and is_joined:
        raise UnboundedError("a reshape cuts dimensions that vary, and puts others together")
    return bounder.again(value), tuple(found)


@dataclass(frozen=True, slots=True)
class _Part:
    """A factor of a dimension; where it is the same everywhere, what counts of it, or nothing once it was cut."""

    factor: Factor
    repeated: Dimension | None = None


def _factors_of(bounder: Bounder, operand: Value) -> list[_Part]:
    """What dimensions are made of, and what is the same at all of many places."""
    assert isinstance(operand.type, TensorType)
    found = []
    for size, dimension in zip(operand.type.shape, bounder.within[operand], strict=True):
        repeated = prefix(size) if isinstance(size, Extent) and not varies(dimension) else None
        whole_one = dimension if repeated is None else whole(today(size))
        found += [_Part(factor, repeated) for factor in whole_one if factor.largest != 1]
    return found


def _dimension_of(parts: Sequence[_Part], size: int) -> Dimension:
    """What is within of a dimension of such parts.

    What is the same everywhere stays so, alone: beside other parts its first places count, as of any other. Of 8
    channels that are each repeated at 12 of 16 pixels no prefix counts.
    """
    if not isinstance(size, Extent) or all(part.repeated is not None for part in parts):
        return tuple(part.factor for part in parts)
    if any(part.repeated == () for part in parts):
        raise UnboundedError("a reshape merges a part of what is repeated with what is not")
    return tuple(factor for part in parts for factor in part.repeated or (part.factor,))


def _split(factor: Factor, outer: int) -> tuple[Factor, Factor]:
    inner, rest = divmod(factor.largest, outer)
    if rest:
        raise UnboundedError("a reshape cuts through a dimension")
    if factor.size is None:
        return Factor(outer), Factor(inner)
    return Factor(outer, factor.size.over(inner)), Factor(inner)
