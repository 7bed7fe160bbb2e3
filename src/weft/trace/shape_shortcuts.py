"""Operators whose shape rule in PyTorch is slow, or only knows of GPUs -> stand-ins for their results.

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


def _grouped_product(arguments: tuple[Any, ...]) -> Any:
    """Products with a matrix for each group of rows, as layers of experts compute them; the rule knows bf16 alone."""
    first, second, *rest = arguments
    ends, *options = rest or (None,)
    plain = first.device.type == "cpu" and first.dtype is second.dtype and first.shape[-1] == second.shape[-2]
    if not plain or any(option is not None for option in options):
        return None
    groups = tuple(ends.shape) if isinstance(ends, torch.Tensor) else ()
    rows, columns = first.shape[-2], second.shape[-1]
    # By the dimensions of both: of matrices that are cut along what is summed, along columns or rows, or not at all.
    sizes = {
        (2, 2): (*groups, rows, columns),
        (2, 3): (rows, columns),
        (3, 2): (rows, columns),
        (3, 3): (first.shape[0], rows, columns),
    }.get((first.dim(), second.dim()))
    return None if sizes is None else first.new_empty(sizes)


SHAPE_SHORTCUTS: Mapping[str, Callable[[tuple[Any, ...]], Any]] = MappingProxyType(
    {"aten.native_batch_norm.default": _batch_norm, "aten._grouped_mm.default": _grouped_product}
)
