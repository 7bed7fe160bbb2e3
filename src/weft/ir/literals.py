"""Write literals and constant tensors as text that reads back exactly, and compare constants bit by bit.

| literal | text |
|---|---|
| 3, -0.0, inf, complex | `3`, `-0.0`, `inf`, `complex(1.0, -0.0)` |
| True, None, a string | `True`, `None`, `"as in JSON"` |
| torch.float32, a dtype without a short name, a layout | `f32`, `torch.qint8`, `torch.strided` |
| a device | `@cuda:0` |
| a tuple or list | `[1, [2, 3]]` |
| a torch.Generator, which does not read back: it lives in one process | `generator` |
| an operand, a written argument, the hole of a view step | `%x`, `!0`, `_` |
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from weft.errors import UsageError
from weft.ir.extents import Extent
from weft.ir.library import Argument, Hole, Operand, WrittenArgument
from weft.ir.types import CPU, DTYPE_NAMES, TensorType, row_major, type_of

LITERALS: dict[type, Callable[[Any], str]] = {
    bool: str,
    int: str,
    float: repr,
    complex: lambda value: f"complex({value.real!r}, {value.imag!r})",
    type(None): str,
    str: json.dumps,
    torch.dtype: lambda value: DTYPE_NAMES.get(value, str(value)),
    torch.device: lambda value: f"@{value}",
    torch.layout: str,
    torch.memory_format: str,
    torch.Generator: lambda _: "generator",
    Hole: lambda _: "_",
    Extent: str,
    WrittenArgument: lambda value: f"!{value.index}",
}


def argument_text(argument: Argument, operands: Sequence[str] = ()) -> str:
    """Write one argument; `operands` are the texts that Operand(i) stands for."""
    if isinstance(argument, tuple | list):
        return "[" + ", ".join(argument_text(item, operands) for item in argument) + "]"
    if isinstance(argument, Operand):
        if not 0 <= argument.index < len(operands):
            raise UsageError(f"an argument stands for operand {argument.index}; there are {len(operands)}")
        return operands[argument.index]
    if type(argument) not in LITERALS:
        raise UsageError(f"{argument!r} of type {type(argument).__name__} is not a literal of the Graph language")
    return LITERALS[type(argument)](argument)


MOST_INLINE_ELEMENTS = 8


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements' bytes, row by row."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def same_constant(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors agree in type and in every bit."""
    return left is right or (type_of(left) == type_of(right) and bytes_of(left) == bytes_of(right))


def inline_elements(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """The elements of a small tensor as numbers that give back every bit, or None if it belongs in the table."""
    kind = type_of(tensor)
    if kind.size > MOST_INLINE_ELEMENTS or kind.device != CPU or not _is_row_major(kind):
        return None
    elements = tuple(_shortest(number, tensor.dtype) for number in _numbers(tensor))
    # Not every NaN survives becoming a Python number.
    return elements if same_constant(tensor_of(elements, kind), tensor) else None


def tensor_of(elements: Sequence[Any], kind: TensorType) -> torch.Tensor:
    """Make a row-major tensor from its elements as Python numbers."""
    exact = kind.dtype
    if kind.dtype.is_floating_point:
        exact = torch.float64
    if kind.dtype.is_complex:
        exact = torch.complex128
    return torch.tensor(list(elements), dtype=exact).to(kind.dtype).reshape(kind.shape)


def _is_row_major(kind: TensorType) -> bool:
    return kind.strides == row_major(kind.shape)


def _numbers(tensor: torch.Tensor) -> list[Any]:
    flat = tensor.detach().reshape(-1)
    if flat.dtype.is_complex:
        return list(flat.to(torch.complex128).tolist())
    return list((flat.double() if flat.dtype.is_floating_point else flat).tolist())


def _shortest(number: Any, dtype: torch.dtype) -> Any:
    """The number with the fewest digits that is the same in float32: 0.1, not 0.10000000149011612."""
    if isinstance(number, complex):
        return complex(_written(number.real), _written(number.imag))
    return _written(float(str(np.float32(number))) if dtype is torch.float32 else number)


def _written(number: Any) -> Any:
    """A number as its text gives it back: of a NaN that has no sign."""
    return math.nan if number != number else number  # noqa: PLR0124 - only a NaN is not equal to itself
