"""Name element types as MXNet, NumPy and torch do, and by the numbers of files."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft.params_file import TYPE_NAMES

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
