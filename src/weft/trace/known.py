"""Values that depend on nothing but the program's text -> their elements, while it is traced.

`torch.tensor(3).item()`, or a check that a library function makes on a tensor of its own making, has one answer for all
runs; such code need not be refused. Nor need a mask or a table that it keeps in a dictionary for later calls.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from weft.ir.graph import Value
from weft.ir.interpreter import evaluate
from weft.ir.library import has_effect, is_uninitialised

LARGEST = 1 << 16
PURE = frozenset({"constant", "library", "update", "item"})


class Known:
    """Computes values of a trace that are the same at every run."""

    def __init__(self) -> None:
        self._found: dict[Value, Any] = {}
        self._unknown: set[Value] = set()

    def elements(self, value: Value) -> torch.Tensor | None:
        """The elements of a value, or nothing if they depend on an input or on chance."""
        found = self._compute(value)
        return found if isinstance(found, torch.Tensor) and found.numel() <= LARGEST else None

    def copy(self, value: Value) -> torch.Tensor | None:
        """A tensor of its own with the elements of a value, however many, or nothing if they are not known."""
        found = self._compute(value)
        return deepcopy(found) if isinstance(found, torch.Tensor) else None

    def _compute(self, value: Value) -> Any:
        if value in self._found:
            return self._found[value]
        if value in self._unknown or not self._is_pure(value):
            self._unknown.add(value)
            return None
        operands = [self._compute(operand) for operand in value.operands]
        if any(operand is None for operand in operands):
            self._unknown.add(value)
            return None
        self._found[value] = found = evaluate(value, operands)
        return found

    def _is_pure(self, value: Value) -> bool:
        if value.op not in PURE:
            return False
        call = value.attributes.get("call")
        return call is None or not (has_effect(call.target) or is_uninitialised(call.target))
