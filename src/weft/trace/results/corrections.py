"""Correct stand-ins of operators whose shape rule in PyTorch differs from what they return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.library import is_fresh, name_of, split
from weft.ir.types import row_major
from weft.trace.interception.capture import Operator, is_stand_in, is_transformed, outside_tracing, tree_map_only
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import user_place
from weft.trace.results.smaller import smaller
from weft.trace.results.unchecked_lengths import goes_beyond

NO_REDUCTION = 0
PER_ROW = 11  # the place of the argument that says so


def _multilabel_margin(result: Any, arguments: tuple[Any, ...]) -> Any:
    """One sample without reduction gives a number; the rule says a list of one."""
    output, is_target = result
    if arguments[0].dim() <= 1 and arguments[2] == NO_REDUCTION:
        output = output.new_empty(())
    return output, is_target


def _log_sigmoid(result: Any, _arguments: tuple[Any, ...]) -> Any:
    """The result lies row by row whatever the argument's order; the rule says in the argument's order."""
    output, rest = result
    return output.new_empty(output.shape), rest


def _by_rows(result: Any, _arguments: tuple[Any, ...]) -> Any:
    """The same of operators that draw random numbers, which they do row by row."""
    return result.new_empty(result.shape)


def _attention(result: Any, _arguments: tuple[Any, ...]) -> Any:
    """The kernel puts heads beside each other; the rule keeps the query's order in dimensions of one element."""
    output, rest = result
    _batch, heads, length, width = output.shape
    strides = (length * heads * width, width, heads * width, 1)
    return (output if output.stride() == strides else output.new_empty_strided(output.shape, strides)), rest


def _observer(result: Any, arguments: tuple[Any, ...]) -> Any:
    """An observer of channels makes room for them when it meets its first values; the rule leaves it empty."""
    running_min = arguments[3]
    if len(arguments) > PER_ROW and arguments[PER_ROW] and not running_min.numel():
        refuse("input resized", user_place())
    return result


def _view(result: Any, arguments: tuple[Any, ...]) -> Any:
    """Strides of dimensions of one element are PyTorch's own choice, which the rule for stand-ins makes otherwise."""
    base = arguments[0]
    if 1 not in base.shape:
        return result
    with outside_tracing():
        strides = torch.empty_strided(base.shape, base.stride(), device="meta").view(result.shape).stride()
    same = strides == result.stride()
    return result if same else base.as_strided(result.shape, strides, base.storage_offset())


CORRECTIONS: Mapping[str, Callable[[Any, tuple[Any, ...]], Any]] = MappingProxyType(
    {
        "aten._fused_moving_avg_obs_fq_helper.default": _observer,
        "aten.view.default": _view,
        "aten._unsafe_view.default": _view,
        "aten.multilabel_margin_loss_forward.default": _multilabel_margin,
        "aten.log_sigmoid_forward.default": _log_sigmoid,
        "aten.normal.float_Tensor": _by_rows,
        "aten.normal.Tensor_Tensor": _by_rows,
        "aten.poisson.default": _by_rows,
        "aten.rrelu_with_noise.default": _by_rows,
        "aten._standard_gamma.default": _by_rows,
        "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    }
)


def correct_strides(operator: Operator, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Where a layout is the operator's own choice, which its rule may tell otherwise, it is asked, with ones."""
    given = [*_leaves(arguments), *_leaves(tuple(keywords.values()))]
    if _is_elementwise(operator):
        if not _is_open(result, given):
            return result
        filling = 1
    else:
        if not _is_open_to_others(operator, result, given):
            return result
        filling = 0  # a place, where it is an integer: every place has a first one
    if goes_beyond(name_of(operator), arguments):
        return result
    is_whole = isinstance(result, (tuple, list))
    results = tuple(result) if is_whole else (result,)
    strides = _asked_smaller(operator, results, (arguments, keywords), filling)
    if strides is None:
        try:
            found = _asked(operator, (arguments, keywords), functools.partial(_real, filling))
        except (RuntimeError, ValueError, IndexError):
            if _is_elementwise(operator):
                raise
            return result  # it refuses these elements: the rule's strides stand
        strides = [_strides_of(one, real) for one, real in zip(results, found, strict=True)]
    corrected = [_with_strides(one, steps) for one, steps in zip(results, strides, strict=True)]
    return type(result)(corrected) if is_whole else corrected[0]


def _is_elementwise(operator: Operator) -> bool:
    """Whether an operator computes each element of its result from those at the same place."""
    return torch.Tag.pointwise in operator.tags or operator is torch.ops.aten.floor_divide.default  # has no tag


def _asked(operator: Operator, given: tuple[Any, Any], real: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The results of an operator of real tensors in the place of stand-ins."""
    with outside_tracing():
        arguments, keywords = tree_map_only(_NOT_REAL, real, given)
        found = operator(*arguments, **keywords)
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _asked_smaller(
    operator: Operator, results: Sequence[Any], given: tuple[Any, Any], filling: int
) -> list[tuple[int, ...] | None] | None:
    """The strides of large results, by small ones; None where these do not tell."""
    if not _is_elementwise(operator) and _stem(operator) not in _KNOWS_NO_SIZES:
        return None
    leaves = [*_leaves(given[0]), *_leaves(tuple(given[1].values()))]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    shapes = [leaf for leaf in results if isinstance(leaf, torch.Tensor)]
    if len(shapes) < len(results) or not all(map(is_stand_in, tensors)):
        return None
    sizes = [_layout(one)[0] for one in shapes]
    primes = smaller(sizes, list(map(_layout, tensors)))
    if primes is None:
        return None

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return _of_now(leaf)
        shape, _ = layout = _layout(leaf)
        strides = primes.strides(layout)
        assert strides is not None  # as `smaller` has found
        return _filled(tuple(map(primes.size, shape)), strides, leaf, filling)

    try:
        found = _asked(operator, given, real)
    except (RuntimeError, ValueError, IndexError):
        return None
    strides = [primes.large(one, shape) for one, shape in zip(found, sizes, strict=True)]
    return None if None in strides else strides


def _layout(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of now."""
    shape, strides = (tree_map_only(torch.SymInt, _of_now, tuple(one)) for one in (tensor.shape, tensor.stride()))
    return shape, strides


def _strides_of(result: Any, found: Any) -> tuple[int, ...] | None:
    if not (isinstance(result, torch.Tensor) and isinstance(found, torch.Tensor)):
        return None  # a kernel may leave out what only other devices need
    return found.stride() if result.shape == found.shape else None


def _with_strides(result: Any, strides: tuple[int, ...] | None) -> Any:
    if strides is None or result.stride() == strides:
        return result
    return result.new_empty_strided(result.shape, strides)


def _leaves(arguments: Sequence[Any]) -> Iterator[Any]:
    for leaf in arguments:
        if isinstance(leaf, (list, tuple)):
            yield from _leaves(leaf)
        else:
            yield leaf


def _is_open(result: Any, given: Sequence[Any]) -> bool:
    """Whether a new tensor's strides do not follow from what was given, for an operator that computes each element."""
    if not isinstance(result, torch.Tensor) or result.device.type != "cpu" or any(result is leaf for leaf in given):
        return False
    if result.numel() > _MOST_ASKED:
        return False
    if _is_loose(result):
        return True
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    whole = [tensor for tensor in tensors if tensor.shape == result.shape]
    if result.numel() == 0 or any(tensor.stride() != result.stride() for tensor in whole):
        return True
    return len(whole) < len(tensors) and (not whole or min(result.shape, default=2) <= 1)


def _is_open_to_others(operator: Operator, result: Any, given: Sequence[Any]) -> bool:
    """The same for any other operator that does nothing but give new tensors."""
    results = [leaf for leaf in _leaves((result,)) if isinstance(leaf, torch.Tensor)]
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    if operator.namespace != "aten" or _stem(operator) not in _ASKED:
        return False
    if not results or not tensors or any(leaf.device.type != "cpu" for leaf in (*results, *tensors)):
        return False
    if (
        not is_fresh(name_of(operator))
        or any(map(is_transformed, (*results, *tensors)))
        or any(leaf.numel() > _MOST_ASKED for leaf in results)
    ):
        return False
    return not all(map(_lies_by_rows, (*results, *tensors))) and not all(map(_lies_by_pixels, (*results, *tensors)))


def _is_loose(result: torch.Tensor) -> bool:
    """Whether a dimension of one element has another stride than where all lies row by row: operators may keep it."""
    step = 1
    for size, stride in zip(reversed(result.shape), reversed(result.stride()), strict=True):
        if size == 1 and stride != step:
            return True
        step *= size
    return False


def _lies_by_rows(tensor: torch.Tensor) -> bool:
    return tensor.stride() == row_major(tuple(tensor.shape))


def _lies_by_pixels(tensor: torch.Tensor) -> bool:
    """Whether channels come last in an image, and no dimension leaves it open; or there are none."""
    if tensor.dim() < _LEAST_OF_IMAGE:
        return _lies_by_rows(tensor)
    batch, channels, *sizes = tensor.shape
    batch_stride, channel_stride, *strides = tensor.stride()
    by_pixels = row_major((batch, *sizes, channels))
    return min(tensor.shape) > 1 and (batch_stride, *strides, channel_stride) == by_pixels


_LEAST_OF_IMAGE = 4


def _stem(operator: Operator) -> str:
    """The name of what an operator computes, or computes the gradient of."""
    _, name, _ = split(name_of(operator))
    return name.strip("_").removesuffix("_data").removesuffix("_backward")


_ASKED = frozenset(
    {"convolution", "native_batch_norm", "native_batch_norm_legit", "native_batch_norm_legit_no_training"}
    | {"native_group_norm", "native_layer_norm", "fused_rms_norm", "scaled_dot_product_flash_attention_for_cpu"}
    | {"max_pool2d_with_indices", "max_pool3d_with_indices", "fractional_max_pool2d", "fractional_max_pool3d"}
    | {f"{kind}_pool{rank}d" for kind in ("avg", "adaptive_avg", "adaptive_max") for rank in (2, 3)}
    | {f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d")}
    | {f"upsample_{kind}" for kind in ("nearest_exact1d", "nearest_exact2d", "nearest_exact3d", "bicubic2d")}
    | {f"upsample_{kind}2d_aa" for kind in ("bilinear", "bicubic")}
    | {f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)}
    | {"softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "prelu_kernel", "log_sigmoid"}
    | {"elu", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid_forward"}
    | {"mish", "sigmoid", "silu", "softplus", "softshrink", "tanh", "threshold", "logit", "native_dropout"}
    | {"binary_cross_entropy", "huber_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss"}
    | {"sum", "mean", "amax", "amin", "prod", "std", "var", "var_mean", "linalg_vector_norm", "renorm", "trilinear"}
    | {"clone", "to_copy", "cat", "flip", "roll", "repeat", "tril", "triu", "sort", "topk", "index_select", "gather"}
    | {"constant_pad_nd", "channel_shuffle", "native_channel_shuffle", "pixel_shuffle", "pixel_unshuffle"}
    | {"im2col", "col2im", "select"}
    | {"slice", "diagonal", "unfold", "grid_sampler_2d", "grid_sampler_3d", "embedding_dense"}
)
"""What is computed from whole tensors, and safely from ones and zeros; the rules of others are taken at their word."""

_KNOWS_NO_SIZES = frozenset({"scaled_dot_product_flash_attention_for_cpu"})
"""Those of them that are asked with small tensors, as they know only which sizes are equal."""

_MOST_ASKED = 2**24
"""Elements of a result whose strides are asked for; the rule's are taken for larger ones, to save time and memory."""

_NOT_REAL = (torch.Tensor, torch.SymInt, torch.SymFloat)


def _of_now(symbol: torch.SymInt | torch.SymFloat) -> float:
    found = symbol.node.hint
    return found if found is not None else 1 if isinstance(symbol, torch.SymInt) else 1.0


def _real(filling: int, leaf: Any) -> Any:
    """Ones for a stand-in, `filling` for one of integers; for a symbol the number that it is in this trace.

    Not what memory happens to hold: the degree of a polynomial may be one of these elements.
    """
    if not isinstance(leaf, torch.Tensor):
        return _of_now(leaf)
    if not is_stand_in(leaf):
        return leaf
    return _filled(*_layout(leaf), leaf, filling)


def _filled(shape: tuple[int, ...], strides: tuple[int, ...], like: torch.Tensor, filling: int) -> torch.Tensor:
    value = 1 if like.dtype.is_floating_point or like.dtype.is_complex else filling
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device).fill_(value)
