"""Name MXNet's errors and element types."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft.errors import ExecutionError


class MXNetError(RuntimeError):
    """What MXNet raises for wrong shapes, types and arguments, and for what failed while it ran."""


class MissingOperator(MXNetError, NotImplementedError):
    """An operator of MXNet 1.9.1 that `weft.mx` does not have."""


class NotImplementedForSymbol(MXNetError):
    """A function of NDArray that was called on a Symbol, most often in a hybridized block."""

    def __init__(self, function: str, alias: str | None = None, *args: object) -> None:
        shown = f"Function {function}"
        if alias is not None:
            shown += f' (namely operator "{alias}")'
        if args:
            shown += f" with arguments ({', '.join(str(type(arg)) for arg in args)})"
        super().__init__(shown + " is not implemented for Symbol and only available in NDArray.")


def as_mxnet_error(error: ExecutionError) -> MXNetError:
    """The error of a failed task, as MXNet raises it: its text, and the line that queued the work."""
    cause = error.__cause__
    text = str(cause) if isinstance(cause, MXNetError) else str(error)
    place = f"\n  where {error.where}" if isinstance(cause, MXNetError) and error.where else ""
    found = MXNetError(
        f"{text}{place}\nTo find where it was queued, run with MXNET_ENGINE_TYPE=NaiveEngine (or WEFT_ENGINE=serial)."
    )
    found.__cause__ = cause or error
    return found


# In the order of the numbers by which files name them.
TYPE_NAMES = (
    "float32",
    "float64",
    "float16",
    "uint8",
    "int32",
    "int8",
    "int64",
    "bool",
    None,
    None,
    None,
    None,
    "bfloat16",
)
TYPE_NUMBERS = {name: number for number, name in enumerate(TYPE_NAMES) if name is not None}
TORCH_TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in TYPE_NUMBERS}
NAMES_OF_TYPES = {dtype: name for name, dtype in TORCH_TYPES.items()}


def type_name(given: Any) -> str:
    """The name of an element type that may be given as a name, a NumPy type or a torch type."""
    if given is None:
        return "float32"
    if isinstance(given, torch.dtype):
        return NAMES_OF_TYPES[given]
    name = given if isinstance(given, str) else np.dtype(given).name
    if name not in TORCH_TYPES:
        raise TypeError(f"data type {given!r} not understood")
    return name


def torch_type(given: Any) -> torch.dtype:
    """The torch type of an element type, however it is given."""
    return given if isinstance(given, torch.dtype) else TORCH_TYPES[type_name(given)]


def numpy_type(dtype: torch.dtype) -> Any:
    """The type that `array.dtype` shows: NumPy's class, as MXNet has it; bfloat16 has none and keeps torch's."""
    return dtype if dtype == torch.bfloat16 else np.dtype(NAMES_OF_TYPES[dtype]).type
