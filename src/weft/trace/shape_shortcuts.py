"""Operators whose shape rule in PyTorch computes in many small steps -> stand-ins for their results in one.

A shortcut covers the usual case alone; of any other it gives nothing, and PyTorch's rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch


def _batch_norm(arguments: tuple[Any, ...]) -> Any:
    """With the statistics as given, of an input that lies row by row: a result like it, and no statistics."""
    values, *parameters, training, _momentum, _epsilon = arguments
    sizes = values.shape
    if training or len(sizes) < 2 or not all(type(size) is int for size in sizes):
        return None  # a SymInt may stand for any size
    # Where dimensions of one element leave it open in which order the input lies, PyTorch chooses.
    if sizes[0] == 0 or min(sizes[1:]) < 2:
        return None
    plain = values.dtype is torch.float32 and values.device.type == "cpu" and values.is_contiguous()
    if not plain or not all(_is_plain(parameter, sizes[1], values.device) for parameter in parameters):
        return None
    return values.new_empty(sizes), values.new_empty((0,)), values.new_empty((0,))


def _is_plain(parameter: Any, size: int, device: torch.device) -> bool:
    if not isinstance(parameter, torch.Tensor):
        return False
    return tuple(parameter.shape) == (size,) and parameter.dtype is torch.float32 and parameter.device == device


SHAPE_SHORTCUTS: Mapping[str, Callable[[tuple[Any, ...]], Any]] = MappingProxyType(
    {"aten.native_batch_norm.default": _batch_norm}
)
