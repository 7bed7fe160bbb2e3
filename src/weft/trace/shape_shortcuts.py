"""Operators whose shape rule in PyTorch is slow, or only knows of GPUs -> the types of their results.

A shortcut covers the usual case alone; of any other it gives nothing, and PyTorch's rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.types import CPU, TensorType, contiguous

Types = TensorType | tuple[TensorType, ...] | None


def _batch_norm(arguments: tuple[Any, ...]) -> Types:
    """Of an input that lies row by row: a result like it, and the statistics of the batch where they are used."""
    values, *parameters, training, _momentum, _epsilon = arguments
    if not _has_channels(values):
        return None
    channels = values.shape[1]
    if not all(_is_plain(parameter, (channels,)) for parameter in parameters):
        return None
    statistics = contiguous(torch.float32, (channels if training else 0,))
    return _like(values), statistics, statistics


def _batch_norm_gradient(arguments: tuple[Any, ...]) -> Types:
    """By statistics of the batch, of a gradient and an input that lie row by row: all three gradients."""
    gradient, values, weight, _mean, _variance, *saved, training, _epsilon, wanted = arguments
    if not training or not all(wanted) or not _has_channels(values) or not _is_plain(gradient, tuple(values.shape)):
        return None
    channels = (values.shape[1],)
    if not all(_is_plain(parameter, channels) for parameter in (weight, *saved)):
        return None
    return _like(values), contiguous(torch.float32, channels), contiguous(torch.float32, channels)


def _has_channels(values: Any) -> bool:
    """Tell whether a batch lies row by row, and its dimensions leave no other order in which it might lie."""
    sizes = tuple(values.shape)
    return len(sizes) > 1 and _is_plain(values) and sizes[0] > 0 and min(sizes[1:]) > 1


def _elementwise(arguments: tuple[Any, ...]) -> Types:
    """Of numbers and of tensors of one shape that lie row by row: a result like these."""
    first, *rest = arguments
    if not _is_plain(first):
        return None
    shape = tuple(first.shape)
    if all(_is_plain(other, shape) for other in rest):
        return _like(first)
    # Beside what has no dimensions, PyTorch chooses in which order dimensions of one element lie.
    alike = (type(other) in (int, float) or _is_plain(other, shape) or _is_plain(other, ()) for other in rest)
    return _like(first) if min(shape, default=0) > 1 and all(alike) else None


def _softmax(arguments: tuple[Any, ...]) -> Types:
    """Along one dimension of a tensor that lies row by row, in its own type: a result like it."""
    values, dimension, changes_type = arguments
    return _like(values) if _is_plain(values) and not changes_type and _has(values, dimension) else None


def _softmax_gradient(arguments: tuple[Any, ...]) -> Types:
    gradient, result, dimension, dtype = arguments
    if dtype is not torch.float32 or not _is_plain(gradient) or not _is_plain(result, tuple(gradient.shape)):
        return None
    return _like(gradient) if _has(gradient, dimension) else None


def _has(values: torch.Tensor, dimension: Any) -> bool:
    return type(dimension) is int and -values.dim() <= dimension < values.dim()


def _class_loss(arguments: tuple[Any, ...]) -> Types:
    """The loss of a batch with a class for each row, as one number; and how many rows count."""
    if not _is_batch_of_classes(*arguments[:-1]):
        return None
    return contiguous(torch.float32, ()), contiguous(torch.float32, ())


def _class_loss_gradient(arguments: tuple[Any, ...]) -> Types:
    gradient, *batch, _ignored, total = arguments
    plain = _is_plain(gradient, ()) and _is_plain(total, ()) and _is_batch_of_classes(*batch)
    return _like(batch[0]) if plain else None


def _is_batch_of_classes(values: Any, classes: Any, weight: Any, reduction: Any) -> bool:
    if not _is_plain(values) or values.dim() != 2 or weight is not None or reduction not in (1, 2):
        return False
    rows = (values.shape[0],)
    return tuple(classes.shape) == rows and classes.dtype is torch.int64 and classes.device == CPU


def _is_plain(tensor: Any, sizes: tuple[int, ...] | None = None) -> bool:
    """Tell whether an argument is a tensor on the CPU, of single floats that lie row by row; and of these sizes."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not torch.float32 or tensor.device != CPU:
        return False
    shape = tuple(tensor.shape)
    if not all(type(size) is int for size in shape):
        return False  # a SymInt may stand for any size
    return (sizes is None or shape == sizes) and tensor.layout is torch.strided and tensor.is_contiguous()


def _like(tensor: torch.Tensor) -> TensorType:
    return contiguous(torch.float32, tuple(tensor.shape))


def _grouped_product(arguments: tuple[Any, ...]) -> Types:
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
    return None if sizes is None else contiguous(first.dtype, tuple(sizes), first.device)


SHAPE_SHORTCUTS: Mapping[str, Callable[[tuple[Any, ...]], Types]] = MappingProxyType(
    {
        "aten.native_batch_norm.default": _batch_norm,
        "aten.native_batch_norm_backward.default": _batch_norm_gradient,
        "aten.add.Tensor": _elementwise,
        "aten.sub.Tensor": _elementwise,
        "aten.mul.Tensor": _elementwise,
        "aten.div.Tensor": _elementwise,
        "aten.relu.default": _elementwise,
        "aten.threshold_backward.default": _elementwise,
        "aten._log_softmax.default": _softmax,
        "aten._log_softmax_backward_data.default": _softmax_gradient,
        "aten._softmax.default": _softmax,
        "aten._softmax_backward_data.default": _softmax_gradient,
        "aten.nll_loss_forward.default": _class_loss,
        "aten.nll_loss_backward.default": _class_loss_gradient,
        "aten._grouped_mm.default": _grouped_product,
    }
)
