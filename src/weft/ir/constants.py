"""Constant tensors: which are written out in text, how they compare, how a list of numbers becomes one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from weft.ir.types import CPU, TensorType, row_major, type_of

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
