"""Infer the result types of usual operators by rules of Weft's own, a row each, without PyTorch's slow shape rules.

PyTorch's rule takes up to a millisecond, or knows of GPUs alone; what it says of a usual call is arithmetic on sizes
and strides. A rule covers the usual case alone; of any other it gives nothing, and PyTorch's rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from weft.ir.types import CPU, TensorType, contiguous, row_major, type_of
from weft.trace.interception.capture import is_plain_stand_in
from weft.trace.results.result_types import ONE, TUPLE, Made, ResultRow


class ViewOf(NamedTuple):
    """A view of the first argument: its type, and how many elements behind that one it begins."""

    type: TensorType
    offset: int = 0


SHORT = (torch.bfloat16, torch.float16)
IMAGE_RANK = 4
Types = TensorType | tuple[TensorType, ...] | ViewOf | None
Rule = Callable[[tuple[Any, ...]], Types]


def _batch_norm(arguments: tuple[Any, ...]) -> Types:
    """Of an input that lies row by row: a result like it, and the statistics of the batch where they are used.

    Under autocast the input is shorter than its parameters, and the statistics are as these: PyTorch's rule errs there.
    """
    values, *parameters, training, _momentum, _epsilon = arguments
    found = _with_channels(values)
    if found is None:
        return None
    channels = values.shape[1]
    if not all(_is_plain(parameter, (channels,)) for parameter in parameters):
        return None
    statistics = contiguous(torch.float32, (channels if training else 0,))
    return found, statistics, statistics


def _batch_norm_gradient(arguments: tuple[Any, ...]) -> Types:
    """By statistics of the batch, of a gradient and an input that lie alike: all three gradients."""
    gradient, values, weight, _mean, _variance, *saved, training, _epsilon, wanted = arguments
    found = _with_channels(values)
    if not training or not all(wanted) or found is None or _with_channels(gradient) != found:
        return None
    channels = (values.shape[1],)
    if not all(_is_plain(parameter, channels) for parameter in (weight, *saved)):
        return None
    return found, contiguous(torch.float32, channels), contiguous(torch.float32, channels)


def _with_channels(values: Any) -> TensorType | None:
    """Give the type of a batch that lies row by row, or pixel by pixel in a short float, as nothing else might lie."""
    if _has_channels(values):
        return _like(values)
    if not _is_of(values, SHORT) or values.dim() < 2 or values.shape[0] == 0 or min(values.shape[1:]) <= 1:
        return None
    images = values.dim() == IMAGE_RANK and values.is_contiguous(memory_format=torch.channels_last)
    if not images and not values.is_contiguous():
        return None
    return TensorType(values.dtype, tuple(values.shape), tuple(values.stride()))


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
    return _is_of(tensor, (torch.float32,))


def _is_of(tensor: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Tell whether an argument is a tensor of one of some types on the CPU."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in dtypes or tensor.device != CPU:
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


def _clone(arguments: tuple[Any, ...], form: torch.memory_format = torch.preserve_format) -> Types:
    """A copy of a tensor: as it lies itself where it has no gaps, or row by row."""
    (tensor,) = arguments
    if not is_plain_stand_in(tensor) or any(type(size) is not int for size in tensor.shape):
        return None
    kind = type_of(tensor)
    if form is torch.contiguous_format or kind.strides == row_major(kind.shape):
        known = form in (torch.contiguous_format, torch.preserve_format)
        return contiguous(kind.dtype, kind.shape, kind.device) if known else None
    fills = min(kind.shape, default=0) > 1 and _fills(kind.shape, kind.strides)
    return kind if form is torch.preserve_format and fills else None


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


def _of_view(rule: Callable[..., ViewOf | None]) -> Rule:
    """Make a rule of one that takes the type of a tensor and plain numbers, and says what a view looks into of it."""

    def of_arguments(arguments: tuple[Any, ...]) -> Types:
        tensor, *numbers = arguments
        if not isinstance(tensor, torch.Tensor) or not is_plain_stand_in(tensor):
            return None
        if any(type(number) is not int for given in numbers for number in (given if type(given) is list else [given])):
            return None
        return rule(type_of(tensor), *numbers)

    return of_arguments


def _window(kind: TensorType, sizes: list[int], strides: list[int], offset: int = 0) -> ViewOf:
    return ViewOf(TensorType(kind.dtype, tuple(sizes), tuple(strides), kind.device), offset)


def _view(kind: TensorType, sizes: list[int]) -> ViewOf | None:
    """Of a tensor with elements, of which every dimension of the view has those of one run of its dimensions."""
    count, unknown = prod(size for size in sizes if size != -1), sizes.count(-1)
    if kind.size == 0 or count <= 0 or unknown > 1 or min(sizes, default=1) < -1:
        return None
    whole = [kind.size // count if size == -1 else size for size in sizes]
    if prod(whole) != kind.size:
        return None
    if kind.strides == row_major(kind.shape):
        return _window(kind, whole, list(row_major(tuple(whole))))
    strides = _strides_in_runs(kind, whole)
    return None if strides is None else _window(kind, whole, strides)


def _strides_in_runs(kind: TensorType, sizes: list[int]) -> list[int] | None:
    """Give the strides of a view by runs of dimensions that lie as one.

    A run has so many elements `apart` from one another; the view has `reached` some of them. What PyTorch says of
    dimensions of one element depends on who is asked: they are left to it.
    """
    if 1 in kind.shape or 1 in sizes:
        return None
    strides, left = [0] * len(sizes), len(sizes)
    apart, count, reached = kind.strides[-1], 1, 1
    for place in reversed(range(len(kind.shape))):
        count *= kind.shape[place]
        if place and kind.strides[place - 1] == count * apart:
            continue
        while left and reached < count:
            left -= 1
            strides[left] = reached * apart
            reached *= sizes[left]
        if reached != count:
            return None
        apart, count, reached = kind.strides[place - 1], 1, 1
    return strides


def _expand(kind: TensorType, sizes: list[int]) -> ViewOf | None:
    """Of a tensor with dimensions, of which those of one element are repeated, and so are new ones before them."""
    new = len(sizes) - len(kind.shape)
    if not kind.shape or new < 0 or min(sizes) < -1 or -1 in sizes[:new]:
        return None
    whole, strides = list(sizes), [0] * new + list(kind.strides)
    for place, size in enumerate(kind.shape, new):
        if whole[place] in (-1, size):
            whole[place] = size
        elif size == 1:
            strides[place] = 0
        else:
            return None
    for place in reversed(range(new)):
        strides[place] = whole[place + 1] * strides[place + 1] if whole[place] == 1 else 0
    return _window(kind, whole, strides)


def _same(kind: TensorType) -> ViewOf:
    return ViewOf(kind)


def _transpose(kind: TensorType, first: int, second: int) -> ViewOf | None:
    order = list(range(len(kind.shape)))
    if not _exists(kind, first) or not _exists(kind, second):
        return None
    order[first], order[second] = order[second], order[first]
    return _permute(kind, order)


def _matrix_transpose(kind: TensorType) -> ViewOf | None:
    return _transpose(kind, 0, 1) if len(kind.shape) == 2 else None


def _permute(kind: TensorType, order: list[int]) -> ViewOf | None:
    places = range(len(kind.shape))
    if not all(_exists(kind, place) for place in order) or sorted(places[place] for place in order) != list(places):
        return None
    return _window(kind, [kind.shape[place] for place in order], [kind.strides[place] for place in order])


def _select(kind: TensorType, dimension: int, index: int) -> ViewOf | None:
    if not _exists(kind, dimension) or not -kind.shape[dimension] <= index < kind.shape[dimension]:
        return None
    sizes, strides = list(kind.shape), list(kind.strides)
    index, step = range(sizes.pop(dimension))[index], strides.pop(dimension)
    return _window(kind, sizes, strides, index * step)


def _unsqueeze(kind: TensorType, dimension: int) -> ViewOf | None:
    count = len(kind.shape)
    if not -count - 1 <= dimension <= count:
        return None
    place = dimension % (count + 1)
    step = kind.shape[place] * kind.strides[place] if place < count else 1
    sizes, strides = list(kind.shape), list(kind.strides)
    sizes.insert(place, 1)
    strides.insert(place, step)
    return _window(kind, sizes, strides)


def _squeeze(kind: TensorType, dimension: int) -> ViewOf | None:
    if not _exists(kind, dimension) or kind.shape[dimension] != 1:
        return None
    sizes, strides = list(kind.shape), list(kind.strides)
    del sizes[dimension], strides[dimension]
    return _window(kind, sizes, strides)


def _exists(kind: TensorType, dimension: int) -> bool:
    return -len(kind.shape) <= dimension < len(kind.shape)


RESULT_RULES: Mapping[str, Rule] = MappingProxyType(
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
        "aten.silu.default": _elementwise,
        "aten.hardsigmoid.default": _elementwise,
        "aten.hardswish.default": _elementwise,
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
        "aten.view.default": _of_view(_view),
        "aten._unsafe_view.default": _of_view(_view),
        "aten.expand.default": _of_view(_expand),
        "aten.detach.default": _of_view(_same),
        "aten.t.default": _of_view(_matrix_transpose),
        "aten.transpose.int": _of_view(_transpose),
        "aten.permute.default": _of_view(_permute),
        "aten.select.int": _of_view(_select),
        "aten.unsqueeze.default": _of_view(_unsqueeze),
        "aten.squeeze.dim": _of_view(_squeeze),
    }
)


def row_by_rule(target: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ResultRow | None:
    """Describe the results of a call, a view's base being its first argument; None where PyTorch has to be asked."""
    if target == "aten.clone.default" and keywords.keys() <= {"memory_format"}:
        types = _clone(arguments, keywords.get("memory_format", torch.preserve_format))
    else:
        rule = RESULT_RULES.get(target)
        types = None if rule is None or keywords else rule(arguments)
    if isinstance(types, ViewOf):
        return ResultRow(ONE, (Made(types.type, 0, types.offset),))
    if isinstance(types, TensorType):
        return ResultRow(ONE, (Made(types),))
    return None if types is None else ResultRow(TUPLE, tuple(Made(kind) for kind in types))


# Of one tensor, so that no other one can overlap it.
IN_PLACE: Mapping[str, str] = MappingProxyType(
    {
        f"aten.{name}_.default": f"aten.{name}.default"
        for name in ("relu", "gelu", "silu", "sigmoid", "tanh", "hardsigmoid", "hardswish", "hardtanh")
    }
)


def stays_in_place(target: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Tell whether a call surely does no more than to change the elements of its first argument, which it gives back.

    It does if a new result would be of the very type that the argument has.
    """
    other = IN_PLACE.get(target)
    if other is None or keywords or not is_plain_stand_in(arguments[0]):
        return False
    return RESULT_RULES[other](arguments) == type_of(arguments[0])
