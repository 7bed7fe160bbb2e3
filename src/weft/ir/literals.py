"""Literals -> text that reads back exactly: numbers, strings, dtypes, devices, layouts, and lists of arguments.

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
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import UsageError
from weft.ir.calls import Argument, Hole, Operand, WrittenArgument
from weft.ir.types import DTYPE_NAMES

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
