"""Python numbers that a program is given -> tensors of no dimensions, many at a time.

One by one, each would take as long as a small operator, and a lazy loop has a number for nearly every one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.ir.graph import Value
from weft.ir.types import NumberType, TensorType
from weft.plan.library_plan import LibraryPlan

TYPES = {"int": ("q", torch.int64), "float": ("d", torch.float64)}  # of an array, and of PyTorch, by kind of number


def number_tensors(kind: str, dtype: torch.dtype, numbers: Sequence[float]) -> tuple[torch.Tensor, ...]:
    """Give each number of a kind as a tensor of floats; one beyond the dtype's range is infinite, as in operators."""
    code, given = TYPES[kind]
    return torch.frombuffer(array(code, numbers), dtype=given).double().to(dtype).unbind()


@dataclass(frozen=True, slots=True)
class Together:
    """Values that are made of numbers of one kind, into tensors of one dtype, by the first of them."""

    kind: str
    dtype: torch.dtype
    values: tuple[Value, ...]


def numbers_together(plan: LibraryPlan) -> dict[Value, Together]:
    """Find numbers that are made into tensors at once.

    They share memory, so only machine code may see them, which neither hands them out nor writes to them.
    """
    seen = {operand for step in plan.steps if step.value.op != "native" for operand in step.value.operands}
    seen.update(plan.outputs)
    alike: dict[tuple[str, torch.dtype], list[Value]] = {}
    for step in plan.steps:
        kind = None if step.value in seen else _kind_and_dtype(step.value)
        if kind is not None:
            alike.setdefault(kind, []).append(step.value)
    found = [Together(*kind, tuple(values)) for kind, values in alike.items()]
    return {value: together for together in found for value in together.values}


def _kind_and_dtype(value: Value) -> tuple[str, torch.dtype] | None:
    """What a number and the tensor made of it are; None for what is made in another way."""
    if value.op != "scalar" or not isinstance(value.type, TensorType) or value.type.device.type != "cpu":
        return None
    given, dtype = value.operands[0], value.attributes["dtype"]
    if given.op != "input" or not isinstance(given.type, NumberType) or given.type.kind not in TYPES:
        return None
    return (given.type.kind, dtype) if dtype.is_floating_point else None
