"""Find images of which a `select` hides rows and columns: convolutions and poolings end there themselves.

Where sizes vary, what is beyond a size becomes what changes nothing before a window sees it (0, or -inf of a maximum).
A kernel that knows where images end takes that for outside, as what is beside an image. So nothing is computed between
one convolution and the next, and the code that follows the first is part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

import torch

from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.plan.kernels.images import Limited
from weft.plan.regions.indices import uniform

FILLINGS: Mapping[str, float] = MappingProxyType({"convolution": 0, "average_pool": 0, "max_pool": -inf})
ROWS, COLUMNS = 2, 3


@dataclass(frozen=True, slots=True)
class LimitedImages:
    """Images, and the i32 numbers that say how many of their rows and columns there are."""

    images: Value
    rows: Value | None
    columns: Value | None

    @property
    def limited(self) -> Limited:
        """Whether rows and columns are limited."""
        return self.rows is not None, self.columns is not None

    @property
    def numbers(self) -> tuple[Value, ...]:
        """The numbers that there are."""
        return tuple(number for number in (self.rows, self.columns) if number is not None)


def limited_images(value: Value) -> LimitedImages | None:
    """Give the images that a convolution or pooling sees, where a `select` hides some of their rows and columns."""
    if value.op not in FILLINGS or value.operands[0].op != "select":
        return None
    hidden = value.operands[0]
    condition, images, filling = hidden.operands
    while filling.op in ("expand", "reshape"):
        filling = filling.operands[0]
    number = uniform(filling) if filling.op == "constant" else None
    limits = _limits(condition)
    if number is None or number.number != FILLINGS[value.op] or not limits or not limits.keys() <= {ROWS, COLUMNS}:
        return None
    return LimitedImages(images, limits.get(ROWS), limits.get(COLUMNS))


def _limits(condition: Value) -> dict[int, Value] | None:
    """The i32 numbers that positions along dimensions are below where a condition holds; None if it says more."""
    if condition.op == "logical_and":
        one, other = map(_limits, condition.operands)
        return None if one is None or other is None or one.keys() & other.keys() else one | other
    if condition.op in ("expand", "reshape"):
        limits = _limits(condition.operands[0])
        moved = None if limits is None else {_moved(condition, place): number for place, number in limits.items()}
        return moved if moved is not None and None not in moved else None  # type: ignore[return-value]  # no None
    if condition.op != "lt":
        return None
    along, number = _ramp(condition.operands[0]), _scalar(condition.operands[1])
    return None if along is None or number is None else {along: number}


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape


def _moved(view: Value, place: int) -> int | None:
    """Where an expand or reshape puts a dimension, if it stays one by itself."""
    before, now = _shape(view.operands[0]), _shape(view)
    if view.op == "expand":
        return len(now) - len(before) + place
    if [size for size in before if size != 1] != [size for size in now if size != 1] or before[place] == 1:
        return None
    longer = sum(size != 1 for size in before[:place])
    return [at for at, size in enumerate(now) if size != 1][longer]


def _ramp(value: Value) -> int | None:
    """The dimension along which a value is the position."""
    if value.op == "iota":
        return int(value.attributes["dimension"])
    if value.op in ("expand", "reshape"):
        along = _ramp(value.operands[0])
        return None if along is None else _moved(value, along)
    if value.op != "constant":
        return None
    tensor: torch.Tensor = value.attributes["tensor"]
    longer = [place for place, size in enumerate(tensor.shape) if size != 1]
    is_ramp = len(longer) == 1 and torch.equal(tensor.flatten().long(), torch.arange(tensor.numel()))
    return longer[0] if is_ramp else None


def _scalar(value: Value) -> Value | None:
    """The i32 number that is repeated in a value."""
    while value.op in ("expand", "reshape"):
        value = value.operands[0]
    kind = value.type
    return value if isinstance(kind, TensorType) and kind.size == 1 and kind.dtype is torch.int32 else None
