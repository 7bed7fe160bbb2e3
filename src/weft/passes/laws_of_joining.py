"""Laws of sums of padded parts, as the gradients of slices of one tensor are added up: the parts lie side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.ir.graph import Value
from weft.ir.ops import build
from weft.ir.types import CPU, contiguous
from weft.passes.law import Law, rebuilt, tensor_type, uniform
from weft.passes.laws_of_arithmetic import FLOATS, is_positive_zero


@dataclass(frozen=True, slots=True)
class Part:
    """A value inside zeros along one dimension, from an element on."""

    value: Value
    dimension: int
    start: int

    @property
    def stop(self) -> int:
        """The first element behind it."""
        return self.start + tensor_type(self.value).shape[self.dimension]


def sum_of_parts(value: Value) -> Value | None:
    """One padded value for the sum of two, where one part begins at the end of the other."""
    kind = tensor_type(value)
    if kind.dtype not in FLOATS or kind.device != CPU:
        return None
    parts = [part for part in map(_part, value.operands) if part is not None]
    if len(parts) != 2:
        return None
    first, second = sorted(parts, key=lambda part: part.start)
    if first.dimension != second.dimension or first.stop != second.start:
        return None
    joined = build("concat", *_added(first), *_added(second), place=value.place, dimension=first.dimension)
    zeros = (0,) * kind.rank
    high = kind.shape[first.dimension] - second.stop
    return rebuilt(
        value,
        "pad",
        joined,
        low=_with(zeros, first.dimension, first.start),
        high=_with(zeros, first.dimension, high),
        value=0.0,
    )


def _part(value: Value) -> Part | None:
    if value.op != "pad" or not is_positive_zero(value.attributes["value"]):
        return None
    sides = zip(value.attributes["low"], value.attributes["high"], strict=True)
    padded = [dimension for dimension, side in enumerate(sides) if any(side)]
    if len(padded) != 1 or not tensor_type(value).size:
        return None
    return Part(value.operands[0], padded[0], value.attributes["low"][padded[0]])


def _added(part: Part) -> list[Value]:
    """What is joined: with the zero added that lay over it, which makes 0 of -0."""
    value = part.value
    if value.op == "concat" and value.attributes["dimension"] == part.dimension and all(map(_is_added, value.operands)):
        return list(value.operands)
    kind = tensor_type(value)
    zero = build(
        "constant", type=contiguous(kind.dtype, ()), place=value.place, tensor=torch.zeros((), dtype=kind.dtype)
    )
    return [build("add", value, build("expand", zero, place=value.place, shape=kind.shape), place=value.place)]


def _is_added(value: Value) -> bool:
    number = uniform(value.operands[1]) if value.op == "add" else None
    return number is not None and is_positive_zero(number)


def _with(zeros: tuple[int, ...], dimension: int, size: int) -> tuple[int, ...]:
    return (*zeros[:dimension], size, *zeros[dimension + 1 :])


LAWS = (Law("sum of parts", ("add",), sum_of_parts, "beside a part there are zeros, and x + 0 is x, or 0 for -0"),)
