"""Define a law of simplification, and ask what laws look for in values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from weft.ir.graph import Value
from weft.ir.literals import bytes_of
from weft.ir.ops import build
from weft.ir.types import TensorType

Apply = Callable[[Value], Value | None]
Number = int | float | bool | complex


@dataclass(frozen=True)
class Law:
    """One law: the ops it looks at, what to use instead of a value (None: it does not apply), why that is exact."""

    name: str
    ops: tuple[str, ...]
    apply: Apply
    reason: str


def operand_if_alike(value: Value, operand: Value) -> Value | None:
    """The operand, if it has the type of the value: dtype, sizes, strides and device, all of them known."""
    return operand if isinstance(value.type, TensorType) and operand.type == value.type else None


def rebuilt(like: Value, op: str, *operands: Value, **attributes: object) -> Value:
    """A new value in the place, and of the type, of an old one."""
    return build(op, *operands, place=like.place, type=like.type, **attributes)


def tensor_type(value: Value) -> TensorType:
    """The type of a value that its op guarantees to be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


SAME_ELEMENTS = frozenset({"expand", "reshape", "permute", "slice", "reverse"})
LARGEST_LOOKED_THROUGH = 4096  # elements: a large table of one number is rare, and looking costs time at every compile


def uniform(value: Value) -> Number | None:
    """The number that every element of a value is known to be, from the constant that it repeats or rearranges."""
    while value.op in SAME_ELEMENTS:
        value = value.operands[0]
    if value.op != "constant":
        return None
    tensor: torch.Tensor = value.attributes["tensor"]
    if not 0 < tensor.numel() <= LARGEST_LOOKED_THROUGH:
        return None
    first: Number = tensor.reshape(-1)[0].item()
    if tensor.numel() > 1:
        data = bytes_of(tensor)
        if data != data[: tensor.element_size()] * tensor.numel():
            return None
    return first
