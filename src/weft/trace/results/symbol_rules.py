"""Give the results of usual operators whose sizes are symbols by rules of Weft's own, a row each.

PyTorch's rules decide by sizes (whether one is 1, whether one divides another), which would be conditions of the
program, take milliseconds where sizes are symbols, and import Dynamo. A rule covers the usual case alone; of any other
it gives nothing, and PyTorch's rule is asked. The same trace without symbols says whether it was right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.types import CPU
from weft.trace.interception.capture import Interception, is_usual_stand_in

Sizes = Sequence[Any]  # numbers and symbols
Rule = Callable[[Interception, tuple[Any, ...], Mapping[str, Any]], Any]
ADDED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
FLOATS = ADDED[:4]


def result_by_symbols(
    target: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any], interception: Interception
) -> Any:
    """Give the result of an operator some of whose sizes are symbols; None where PyTorch has to be asked."""
    rule = SYMBOL_RULES.get(target)
    return None if rule is None else rule(interception, arguments, keywords)


def expression_of(size: Any) -> Any:
    """A size as it is made of symbols; a number as it is."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def in_rows(tensor: Any, *, repeated: bool = False) -> bool:
    """Whether a usual tensor lies row by row whatever its sizes are, dimensions of one element too.

    With `repeated`, some of its dimensions may be the same memory again and again.
    """
    if not isinstance(tensor, torch.Tensor) or not is_usual_stand_in(tensor):
        return False
    step: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if repeated and expression_of(stride) == 0:
            continue
        if expression_of(stride) != step:
            return False
        step = step * expression_of(size)
    return True


def _are_same(one: Sizes, other: Sizes) -> bool:
    """Whether sizes are equal whatever the symbols are."""
    return len(one) == len(other) and all(
        a is b or expression_of(a) == expression_of(b) for a, b in zip(one, other, strict=True)
    )


def _is_float(tensor: Any) -> bool:
    return _is_plain(tensor) and tensor.dtype in FLOATS


def _is_plain(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and is_usual_stand_in(tensor)


def _rows(interception: Interception, sizes: Sizes, dtype: torch.dtype) -> torch.Tensor:
    return interception.sized(sizes, dtype, CPU)


def _broadcast(shapes: Sequence[Sizes]) -> list[Any] | None:
    """The sizes of what tensors of these give together, where no symbol has to be compared with another size."""
    found: list[Any] = []
    for place in range(1, 1 + max(map(len, shapes))):
        here = [shape[-place] for shape in shapes if len(shape) >= place]
        own = [size for size in here if not (type(size) is int and size == 1)]
        if any(not _are_same(own[:1], [size]) for size in own):
            return None
        found.insert(0, own[0] if own else 1)
    return found


def _together(interception: Interception, tensors: Sequence[Any], dtype: torch.dtype) -> torch.Tensor | None:
    """What an operator gives that computes each element of those of tensors in rows, some of them repeated."""
    if not all(in_rows(tensor, repeated=True) for tensor in tensors):
        return None
    sizes = _broadcast([tensor.shape for tensor in tensors])
    return None if sizes is None else _rows(interception, sizes, dtype)


def _elementwise(dtype: torch.dtype | None = None, of: Sequence[torch.dtype] = FLOATS) -> Rule:
    """Of tensors of one type, and numbers that do not change it."""

    def rule(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        given = (*arguments, *keywords.values())
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        kinds = {tensor.dtype for tensor in tensors}
        if len(kinds) != 1 or not kinds.issubset(of):
            return None
        (kind,) = kinds
        numbers = (int, torch.SymInt) if kind not in FLOATS else (int, float, torch.SymInt, torch.SymFloat)
        if not all(isinstance(one, (torch.Tensor, str, type(None), *numbers)) for one in given):
            return None
        return _together(interception, tensors, dtype or kind)

    return rule


def _where(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    condition, one, other = arguments
    if keywords or condition.dtype is not torch.bool or one.dtype is not other.dtype:
        return None
    return _together(interception, (condition, one, other), one.dtype)


def _filled(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of a tensor that is filled where another one says, which is no larger."""
    values, mask, _ = arguments
    found = None if keywords else _together(interception, (values, mask), values.dtype)
    return found if found is not None and _are_same(found.shape, values.shape) else None


def _copied(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of a copy, perhaps in another type, which lies in rows as what it is of, or as is asked for."""
    (values,), order = arguments, keywords.get("memory_format")
    if set(keywords) - {"dtype", "memory_format"} or order not in (
        None,
        torch.preserve_format,
        torch.contiguous_format,
    ):
        return None
    if not (in_rows(values) or (_is_plain(values) and order is torch.contiguous_format)):
        return None
    return _rows(interception, values.shape, keywords.get("dtype") or values.dtype)


def _over(dtype_of: Callable[[torch.dtype], torch.dtype | None]) -> Rule:
    """Over some dimensions of a tensor in rows."""

    def rule(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        values, over, *keeps = arguments
        if keywords or not over or not in_rows(values):
            return None
        places, dtype = {place % values.dim() for place in over}, dtype_of(values.dtype)
        if dtype is None or len(places) < len(over):
            return None
        left = [1 if place in places else size for place, size in enumerate(values.shape)]
        kept = left if any(keeps) else [size for place, size in enumerate(left) if place not in places]
        return _rows(interception, kept, dtype)

    return rule


def _softmax(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    values, _, changes = arguments
    plain = not keywords and not changes and _is_float(values) and in_rows(values)
    return _rows(interception, values.shape, values.dtype) if plain else None


def _layer_norm(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    values, sizes, *parameters, _ = arguments
    count = len(sizes)
    if keywords or not count or values.dtype is not torch.float32 or not in_rows(values):
        return None
    of_row = all(one is None or (in_rows(one) and _are_same(one.shape, sizes)) for one in parameters)
    if not of_row or not _are_same(values.shape[-count:], sizes):
        return None
    statistics = (*values.shape[:-count], *[1] * count)
    shapes = (values.shape, statistics, statistics)
    return tuple(_rows(interception, shape, torch.float32) for shape in shapes)


def _batch_norm(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of a batch in rows: a result like it, and the statistics of the batch where they are used."""
    values, *parameters, training, _momentum, _epsilon = arguments
    if keywords or values.dim() < 2 or values.dtype is not torch.float32 or not in_rows(values):
        return None
    channels, given = values.shape[1:2], [one for one in parameters if one is not None]
    if not all(in_rows(one) and one.dtype is torch.float32 and _are_same(one.shape, channels) for one in given):
        return None
    statistics = channels if training else (0,)
    return tuple(_rows(interception, sizes, torch.float32) for sizes in (values.shape, statistics, statistics))


def _layer_norm_gradient(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    gradient, values, sizes, *statistics, weight, bias, wanted = arguments
    tensors = [gradient, values, *statistics, *(one for one in (weight, bias) if one is not None)]
    if keywords or not all(in_rows(one) and one.dtype is torch.float32 for one in tensors):
        return None
    if not _are_same(gradient.shape, values.shape) or not _are_same(values.shape[-len(sizes) :], sizes):
        return None
    return _wanted(interception, (values.shape, sizes, sizes), (values, weight, bias), wanted)


def _wanted(
    interception: Interception, shapes: Sequence[Sizes], owners: Sequence[Any], wanted: Sequence[bool]
) -> tuple[Any, ...] | None:
    """The gradients of a layer's input and parameters that are asked for, where these are there."""
    if any(one and owner is None for one, owner in zip(wanted, owners, strict=True)):
        return None
    return tuple(
        _rows(interception, sizes, torch.float32) if one else None for sizes, one in zip(shapes, wanted, strict=True)
    )


def _group_norm(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    values, *parameters, batch, channels, _, groups, _epsilon = arguments
    if keywords or not _is_group_norm(values, parameters, channels):
        return None
    shapes = (values.shape, (batch, groups), (batch, groups))
    return tuple(_rows(interception, shape, torch.float32) for shape in shapes)


def _group_norm_gradient(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    gradient, values, *statistics, weight, _, channels, _, _, wanted = arguments
    if keywords or not _is_group_norm(values, [weight], channels) or not _are_same(gradient.shape, values.shape):
        return None
    if not all(in_rows(one) and one.dtype is torch.float32 for one in (gradient, *statistics)):
        return None
    return _wanted(interception, (values.shape, [channels], [channels]), (values, weight, weight), wanted)


def _is_group_norm(values: Any, parameters: Sequence[Any], channels: Any) -> bool:
    """Whether a norm is one of a batch in rows, by parameters of its type."""
    tensors = [values, *(one for one in parameters if one is not None)]
    return all(in_rows(one) and one.dtype is torch.float32 for one in tensors) and _are_same(
        values.shape[1:2], [channels]
    )


def _batch_norm_gradient(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    gradient, values, *parameters, training, _epsilon, wanted = arguments
    if keywords or not training or values.dim() < 2 or not _are_same(gradient.shape, values.shape):
        return None
    tensors = [gradient, values, *(one for one in parameters if one is not None)]
    if not all(in_rows(one) and one.dtype is torch.float32 for one in tensors):
        return None
    channels, weight = values.shape[1:2], parameters[0]
    return _wanted(interception, (values.shape, channels, channels), (values, weight, weight), wanted)


def _softmax_gradient(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    gradient, result, _, dtype = arguments
    plain = not keywords and gradient.dtype is result.dtype is dtype and _is_float(result)
    if not (plain and in_rows(gradient) and in_rows(result) and _are_same(gradient.shape, result.shape)):
        return None
    return _rows(interception, result.shape, dtype)


def _embedding_gradient(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    gradient, places, count, *_ = arguments
    if keywords or not _is_float(gradient) or not _is_plain(places):
        return None
    return _rows(interception, (count, gradient.shape[-1]), gradient.dtype)


def _made_like(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of new memory that lies in rows as a tensor does."""
    values = arguments[0]
    usual = {"dtype": values.dtype, "device": CPU, "layout": torch.strided, "memory_format": torch.preserve_format}
    asked = {name: value for name, value in keywords.items() if value not in (None, False)}
    if not in_rows(values) or any(name != "dtype" and usual.get(name) != value for name, value in asked.items()):
        return None
    return _rows(interception, values.shape, asked.get("dtype", values.dtype))


def _like_the_first(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of an operator that moves elements, or leaves some out, of a tensor in rows."""
    values = arguments[0]
    return _rows(interception, values.shape, values.dtype) if not keywords and in_rows(values) else None


def _product(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    one, other = arguments
    if keywords or not (_is_float(one) and _is_float(other)) or one.dtype is not other.dtype:
        return None
    if one.dim() != other.dim() or not _are_same(one.shape[:-2], other.shape[:-2]):
        return None
    if not _are_same(one.shape[-1:], other.shape[-2:-1]):
        return None
    return _rows(interception, (*one.shape[:-1], other.shape[-1]), one.dtype)


def _product_and_row(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    row, *matrices = arguments
    if len(matrices) != 2 or not in_rows(row) or row.dtype is not matrices[0].dtype:
        return None
    found = _product(interception, tuple(matrices), keywords)
    return found if found is not None and _are_same(row.shape, found.shape[-1:]) else None


def _embedding(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    weight, places, *_ = arguments
    if keywords or not _is_float(weight) or weight.dim() != 2 or not in_rows(places):
        return None
    return _rows(interception, (*places.shape, weight.shape[1]), weight.dtype)


def _indexed(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of a tensor in rows of which some places along one dimension are named."""
    values, indices = arguments
    places = [place for place, index in enumerate(indices) if index is not None]
    if keywords or len(places) != 1 or not in_rows(values):
        return None
    (place,) = places
    index = indices[place]
    if not in_rows(index) or index.dim() != 1 or index.dtype is not torch.int64:
        return None
    return _rows(interception, (*values.shape[:place], *index.shape, *values.shape[place + 1 :]), values.dtype)


def _added_at(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of a tensor in rows to some places of which, along one dimension, another one is added."""
    values, place, index, added = arguments
    if keywords or not values.dim() or not all(map(in_rows, (values, index, added))):
        return None
    if index.dim() != 1 or added.dtype is not values.dtype or added.dim() != values.dim():
        return None
    place %= values.dim()
    sizes = (*values.shape[:place], *index.shape, *values.shape[place + 1 :])
    return _rows(interception, values.shape, values.dtype) if _are_same(added.shape, sizes) else None


def _joined(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    tensors, place = (*arguments, 0)[:2]
    first = tensors[0]
    if keywords or not all(in_rows(one) and one.dtype is first.dtype for one in tensors):
        return None
    if not first.dim() or any(one.dim() != first.dim() for one in tensors):
        return None
    place %= first.dim()
    rest = [(*one.shape[:place], *one.shape[place + 1 :]) for one in tensors]
    if not all(_are_same(rest[0], one) for one in rest):
        return None
    whole = sum(one.shape[place] for one in tensors)
    return _rows(interception, (*first.shape[:place], whole, *first.shape[place + 1 :]), first.dtype)


def _made(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of new memory in rows, whose type is given."""
    sizes, dtype = arguments[0], keywords.get("dtype")
    device, order = keywords.get("device") or CPU, keywords.get("memory_format")
    others = {name for name, value in keywords.items() if value not in (None, False)} - {"dtype", "device", "layout"}
    if dtype is None or device != CPU or others or order is not None:
        return None
    return _rows(interception, sizes, dtype) if keywords.get("layout") in (None, torch.strided) else None


def _view(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of a tensor in rows with as many elements, of which one size may be left open."""
    values, sizes = arguments
    if keywords or not in_rows(values):
        return None
    count = prod(map(expression_of, values.shape))
    whole = list(sizes)
    open_places = [place for place, size in enumerate(whole) if type(size) is int and size == -1]
    if len(open_places) > 1:
        return None
    rest = prod(expression_of(size) for place, size in enumerate(whole) if place not in open_places)
    if open_places:
        if rest == 0:
            return None
        quotient = count / rest if not (type(count) is int and type(rest) is int) else count // rest
        found = interception.as_size(quotient)
        if found is None:
            return None
        whole[open_places[0]], rest = found, rest * quotient
    if count != rest:
        return None
    return interception.view(values, whole, _row_strides(whole))


def _row_strides(sizes: Sizes) -> list[Any]:
    found, step = [1] * len(sizes), 1
    for place in reversed(range(len(sizes))):
        found[place], step = step, step * sizes[place]
    return found


def _expand(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del keywords
    values, sizes = arguments
    new = len(sizes) - values.dim()
    if new < 0 or not _is_plain(values) or any(type(size) is int and size < 0 for size in sizes[:new]):
        return None
    whole, strides = list(sizes), [0] * new + list(values.stride())
    for place, size in enumerate(values.shape, new):
        if (type(whole[place]) is int and whole[place] == -1) or _are_same([size], [whole[place]]):
            whole[place] = size
        elif type(size) is int and size == 1:
            strides[place] = 0
        else:
            return None
    return interception.view(values, whole, strides)


def _permute(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del keywords
    values, order = arguments
    places = [place % values.dim() for place in order]
    if not _is_plain(values) or sorted(places) != [*range(values.dim())]:
        return None
    shape, strides = values.shape, values.stride()
    return interception.view(values, [shape[place] for place in places], [strides[place] for place in places])


def _transpose(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    values, one, other = arguments
    count = values.dim()
    if not all(-count <= place < count for place in (one, other)):
        return None
    order = [*range(count)]
    order[one], order[other] = order[other], order[one]
    return _permute(interception, (values, order), keywords)


def _matrix_transpose(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    (values,) = arguments
    return _transpose(interception, (values, 0, 1), keywords) if values.dim() == 2 else None


def _unsqueeze(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del keywords
    values, place = arguments
    count = values.dim()
    if not _is_plain(values) or not -count - 1 <= place <= count:
        return None
    place %= count + 1
    sizes, strides = list(values.shape), list(values.stride())
    strides.insert(place, sizes[place] * strides[place] if place < count else 1)
    sizes.insert(place, 1)
    return interception.view(values, sizes, strides)


def _squeeze(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del keywords
    values, place = arguments
    if not _is_plain(values) or not -values.dim() <= place < values.dim():
        return None
    sizes, strides = list(values.shape), list(values.stride())
    if type(sizes[place]) is not int or sizes[place] != 1:
        return None
    del sizes[place], strides[place]
    return interception.view(values, sizes, strides)


def _at(interception: Interception, values: torch.Tensor, place: int, index: int) -> torch.Tensor:
    sizes, strides = list(values.shape), list(values.stride())
    index, step = range(sizes.pop(place))[index], strides.pop(place)
    return interception.view(values, sizes, strides, index * step)


def _select(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del keywords
    values, place, index = arguments
    if not _is_plain(values) or not -values.dim() <= place < values.dim():
        return None
    size = values.shape[place]
    if type(size) is not int or type(index) is not int or not -size <= index < size:
        return None
    return _at(interception, values, place, index)


def _unbind(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del keywords
    values, place = (*arguments, 0)[:2]
    if not _is_plain(values) or not -values.dim() <= place < values.dim() or type(values.shape[place]) is not int:
        return None
    return [_at(interception, values, place, index) for index in range(values.shape[place])]


def _same(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del keywords
    (values,) = arguments
    return interception.view(values, values.shape, values.stride()) if _is_plain(values) else None


def _enlarged_gradient(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del interception, keywords
    gradient, _, sizes, *_ = arguments
    return gradient.new_empty(sizes)


def _convolution(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Of images in rows; PyTorch's rule asks which of its kernels it would be, by the number of elements."""
    del interception, keywords
    values, weight, _, *numbers, transposed, _, groups = arguments
    count = values.dim() - 2
    if transposed or count < 1 or weight.dim() != count + 2 or not (_ends_in_rows(values) and _ends_in_rows(weight)):
        return None
    channels, given = values.shape[1], weight.shape[1] * groups
    if not (isinstance(channels, int) and channels == given > 0) or any(
        len(each) not in (1, count) for each in numbers
    ):
        return None
    sizes = []
    strides, padding, dilation = ([*each] * (1 if len(each) == count else count) for each in numbers)
    places = zip(values.shape[2:], weight.shape[2:], strides, padding, dilation, strict=True)
    for size, reach, step, before, apart in places:
        room = size + 2 * before - apart * (reach - 1) - 1
        if room < 0:  # a fact of the sizes; the rule raises what the operator does
            return None
        sizes.append(room // step + 1)
    return values.new_empty((values.shape[0], weight.shape[0], *sizes))


def _convolution_gradients(interception: Interception, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    del interception, keywords
    gradient, values, weight, bias_sizes, *_, wanted = arguments
    if not all(map(_ends_in_rows, (gradient, values, weight))):
        return None
    shapes = (values.shape, weight.shape, bias_sizes)
    return tuple(gradient.new_empty(shape) if one else None for shape, one in zip(shapes, wanted, strict=True))


def _ends_in_rows(tensor: torch.Tensor) -> bool:
    """Whether numbers of a row lie side by side, and not those of a pixel."""
    step: Any = tensor.stride()[-1]
    return type(step) is int and step == 1


SYMBOL_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{f"aten.{name}.Tensor": _elementwise(of=ADDED) for name in ("add", "sub", "mul")},
        **{f"aten.bitwise_{name}.Tensor": _elementwise(of=(torch.bool, torch.int64)) for name in ("and", "or")},
        "aten.div.Tensor": _elementwise(),
        "aten.div.Scalar": _elementwise(),
        "aten.pow.Tensor_Scalar": _elementwise(),
        **{
            f"aten.{name}.default": _elementwise()
            for name in [
                "relu",
                "gelu",
                "sigmoid",
                "tanh",
                "silu",
                "exp",
                "log",
                "sqrt",
                "rsqrt",
                "neg",
                "erf",
                "sin",
                "cos",
                "square",
                "abs",
                "reciprocal",
                "hardtanh",
                "clamp",
                "leaky_relu",
                "softplus",
                "elu",
                "gelu_backward",
                "threshold_backward",
                "sigmoid_backward",
                "tanh_backward",
                "silu_backward",
                "log1p",
                "expm1",
                "maximum",
                "minimum",
            ]
        },
        **{
            f"aten.{name}.{kind}": _elementwise(torch.bool, ADDED)
            for name in ("eq", "ne", "lt", "le", "gt", "ge")
            for kind in ("Tensor", "Scalar")
        },
        **{
            f"aten.{name}.default": _elementwise(of=(torch.bool,))
            for name in ("logical_and", "logical_or", "logical_not", "bitwise_not")
        },
        "aten.where.self": _where,
        "aten.index.Tensor": _indexed,
        "aten.index_add.default": _added_at,
        "aten.masked_fill.Scalar": _filled,
        "aten.clone.default": _copied,
        "aten._to_copy.default": _copied,
        "aten.sum.dim_IntList": _over(lambda dtype: dtype if dtype in (*FLOATS, torch.int64) else None),
        "aten.mean.dim": _over(lambda dtype: dtype if dtype in FLOATS else None),
        **{f"aten.{name}.default": _over(lambda dtype: dtype if dtype in ADDED else None) for name in ("amax", "amin")},
        "aten._softmax.default": _softmax,
        "aten._log_softmax.default": _softmax,
        "aten._softmax_backward_data.default": _softmax_gradient,
        "aten._log_softmax_backward_data.default": _softmax_gradient,
        "aten.native_layer_norm.default": _layer_norm,
        "aten.native_layer_norm_backward.default": _layer_norm_gradient,
        "aten.native_group_norm.default": _group_norm,
        "aten.native_group_norm_backward.default": _group_norm_gradient,
        "aten.native_batch_norm.default": _batch_norm,
        "aten.native_batch_norm_backward.default": _batch_norm_gradient,
        "aten.mm.default": _product,
        "aten.bmm.default": _product,
        "aten.addmm.default": _product_and_row,
        "aten.embedding.default": _embedding,
        "aten.embedding_dense_backward.default": _embedding_gradient,
        "aten.cat.default": _joined,
        "aten.full.default": _made,
        "aten.zeros.default": _made,
        "aten.ones.default": _made,
        **{f"aten.{name}_like.default": _made_like for name in ("zeros", "ones", "full", "empty")},
        **{f"aten.{name}.default": _like_the_first for name in ("tril", "triu")},
        "aten.convolution.default": _convolution,
        "aten.convolution_backward.default": _convolution_gradients,
        **{
            f"aten.{kind}_backward.default": _enlarged_gradient
            for kind in [
                "upsample_linear1d",
                "upsample_bilinear2d",
                "upsample_trilinear3d",
                "upsample_bicubic2d",
                "_upsample_bilinear2d_aa",
                "_upsample_bicubic2d_aa",
                "upsample_nearest1d",
                "upsample_nearest2d",
                "upsample_nearest3d",
                "_upsample_nearest_exact1d",
                "_upsample_nearest_exact2d",
                "_upsample_nearest_exact3d",
            ]
        },
        "aten.view.default": _view,
        "aten._unsafe_view.default": _view,
        "aten.expand.default": _expand,
        "aten.detach.default": _same,
        "aten.t.default": _matrix_transpose,
        "aten.transpose.int": _transpose,
        "aten.permute.default": _permute,
        "aten.select.int": _select,
        "aten.unbind.int": _unbind,
        "aten.unsqueeze.default": _unsqueeze,
        "aten.squeeze.dim": _squeeze,
    }
)
