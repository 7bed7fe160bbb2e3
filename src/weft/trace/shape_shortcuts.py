"""Operators whose shape rule in PyTorch is slow, or only knows of GPUs -> the types of their results.

A shortcut covers the usual case alone; of any other it gives nothing, and PyTorch's rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.types import CPU, TensorType, contiguous, row_major

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
    """Of numbers and of tensors that lie alike, without gaps: a result like these."""
    first, *rest = arguments
    if not _is_single(first):
        return None
    shape, strides = tuple(first.shape), first.stride()
    alike = [_is_single(other) and (tuple(other.shape), other.stride()) == (shape, strides) for other in rest]
    if all(alike) and first.is_contiguous():
        return _like(first)
    # Otherwise PyTorch chooses in which order dimensions of one element lie.
    if min(shape, default=0) < 2 or not _fills(shape, strides):
        return None
    fits = (
        same or type(other) in (int, float) or _is_plain(other, ()) or (_is_row(other, shape) and first.is_contiguous())
        for other, same in zip(rest, alike, strict=True)
    )
    return TensorType(torch.float32, shape, strides) if all(fits) else None


def _between(arguments: tuple[Any, ...]) -> Types:
    """Of a tensor that lies row by row, and numbers that its own are held between."""
    return _like(arguments[0]) if _is_row_major(arguments[0]) else None


def _fills(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tell whether elements, in some order of the dimensions, lie one behind the other."""
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if stride != step:
            return False
        step *= size
    return True


def _is_row(tensor: Any, shape: tuple[int, ...]) -> bool:
    """Tell whether a tensor is taken again and again beside one of a shape: it has the last of its dimensions."""
    return isinstance(tensor, torch.Tensor) and _is_plain(tensor, shape[len(shape) - tensor.dim() :])


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


def _layer_norm(arguments: tuple[Any, ...]) -> Types:
    """Over the last dimensions of a tensor that lies row by row: a result like it, and statistics of each row."""
    values, sizes, weight, bias, _epsilon = arguments
    sizes, shape = tuple(sizes), tuple(values.shape)
    if not _is_plain(values) or not sizes or shape[-len(sizes) :] != sizes or min(shape) == 0:
        return None
    if not all(parameter is None or _is_plain(parameter, sizes) for parameter in (weight, bias)):
        return None
    statistics = contiguous(torch.float32, (*shape[: -len(sizes)], *[1] * len(sizes)))
    return _like(values), statistics, statistics


def _product(arguments: tuple[Any, ...]) -> Types:
    """Of matrices of single floats, or of stacks of as many: a result that lies row by row."""
    first, second = arguments
    if not _is_single(first) or not _is_single(second) or first.dim() != second.dim():
        return None
    if first.shape[:-2] != second.shape[:-2] or first.shape[-1] != second.shape[-2]:
        return None
    return contiguous(torch.float32, (*first.shape[:-1], second.shape[-1]))


def _product_and_row(arguments: tuple[Any, ...]) -> Types:
    row, *matrices = arguments
    kind = _product(tuple(matrices)) if len(matrices) == 2 else None
    return kind if isinstance(kind, TensorType) and _is_plain(row, kind.shape[-1:]) else None


def _convolution(arguments: tuple[Any, ...]) -> Types:
    """Of images and weights that lie row by row: a result that does too."""
    values, weight, bias, *numbers, transposed, _, groups = arguments
    count = values.dim() - 2
    if transposed or count < 1 or weight.dim() != count + 2 or not _is_row_major(values) or not _is_row_major(weight):
        return None
    channels = weight.shape[0]
    fits = values.shape[1] == weight.shape[1] * groups and channels % groups == 0
    if not fits or not (bias is None or _is_plain(bias, (channels,))) or any(len(each) != count for each in numbers):
        return None
    places = zip(values.shape[2:], weight.shape[2:], *numbers, strict=True)
    sizes = [(size + 2 * before - apart * (reach - 1) - 1) // step + 1 for size, reach, step, before, apart in places]
    whole = (values.shape[0], channels, *sizes)
    return contiguous(torch.float32, whole) if min(*whole, values.shape[1], *weight.shape[2:]) > 0 else None


def _over_dimensions(arguments: tuple[Any, ...]) -> Types:
    """Of a tensor that lies row by row, over some of its dimensions: a result that does too."""
    values, over, *keeps = arguments
    if not _is_row_major(values) or not over or not all(_has(values, place) for place in over):
        return None
    shape, places = tuple(values.shape), {place % values.dim() for place in over}
    if len(places) < len(over) or min(shape) < 2:
        return None
    left = 1 if any(keeps) else None
    sizes = [left if place in places else size for place, size in enumerate(shape)]
    return contiguous(torch.float32, tuple(size for size in sizes if size is not None))


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
    """Tell whether an argument is a tensor of single floats on the CPU that lie row by row; and of these sizes."""
    return _is_single(tensor) and (sizes is None or tuple(tensor.shape) == sizes) and tensor.is_contiguous()


def _is_row_major(tensor: Any) -> bool:
    """Tell the same also of dimensions of one element, whose strides might say that channels come last."""
    return _is_plain(tensor) and tensor.stride() == row_major(tuple(tensor.shape))


def _is_single(tensor: Any) -> bool:
    """Tell whether an argument is a tensor of single floats on the CPU."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not torch.float32 or tensor.device != CPU:
        return False
    # A SymInt may stand for any size.
    return tensor.layout is torch.strided and all(type(size) is int for size in tensor.shape)


def _like(tensor: torch.Tensor) -> TensorType:
    return contiguous(torch.float32, tuple(tensor.shape))


def _enlarged_nothing(arguments: tuple[Any, ...]) -> Types:
    """An enlarged batch of no images, of which PyTorch's rule stumbles over a check that it means to pass."""
    values, sizes, *_scales = arguments
    plain = isinstance(values, torch.Tensor) and values.numel() == 0 and values.is_contiguous()
    if not plain or 0 in values.shape[1:] or min(sizes) < 1:
        return None
    return contiguous(values.dtype, (*values.shape[:2], *sizes), values.device)


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
        "aten.gelu.default": _elementwise,
        "aten.sigmoid.default": _elementwise,
        "aten.tanh.default": _elementwise,
        "aten.hardtanh.default": _between,
        "aten.threshold_backward.default": _elementwise,
        "aten.sum.dim_IntList": _over_dimensions,
        "aten.mean.dim": _over_dimensions,
        "aten.mm.default": _product,
        "aten.bmm.default": _product,
        "aten.addmm.default": _product_and_row,
        "aten.convolution.default": _convolution,
        "aten.native_layer_norm.default": _layer_norm,
        "aten._log_softmax.default": _softmax,
        "aten._log_softmax_backward_data.default": _softmax_gradient,
        "aten._softmax.default": _softmax,
        "aten._softmax_backward_data.default": _softmax_gradient,
        "aten.nll_loss_forward.default": _class_loss,
        "aten.nll_loss_backward.default": _class_loss_gradient,
        "aten._grouped_mm.default": _grouped_product,
        **{
            f"aten.{kind}{rank}d.default": _enlarged_nothing
            for kind in ("upsample_nearest", "_upsample_nearest_exact")
            for rank in (1, 2, 3)
        },
    }
)
