"""Operators whose shape rule in PyTorch differs from what they return -> the right stand-in for their result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from weft.trace.capture import Operator, is_stand_in, outside_tracing, tree_map_only
from weft.trace.places import user_place
from weft.trace.refusals import refuse

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
    }
)


def correct_elementwise(operator: Operator, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Where operands lie in different orders the result's is the operator's own choice: it is asked, with ones."""
    if torch.Tag.pointwise not in operator.tags or not _is_open(result, (*arguments, *keywords.values())):
        return result
    with outside_tracing():
        real_arguments, real_keywords = tree_map_only(_NOT_REAL, _real, (arguments, keywords))
        strides = operator(*real_arguments, **real_keywords).stride()
    return result if strides == result.stride() else result.new_empty_strided(result.shape, strides)


def _is_open(result: Any, given: tuple[Any, ...]) -> bool:
    """Whether a new tensor's strides do not follow from what was given."""
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


def _is_loose(result: torch.Tensor) -> bool:
    """Whether a dimension of one element has another stride than where all lies row by row: operators may keep it."""
    step = 1
    for size, stride in zip(reversed(result.shape), reversed(result.stride()), strict=True):
        if size == 1 and stride != step:
            return True
        step *= size
    return False


_MOST_ASKED = 2**24
"""Elements of a result whose strides are asked for; the rule's are taken for larger ones, to save time and memory."""

_NOT_REAL = (torch.Tensor, torch.SymInt, torch.SymFloat)


def _real(leaf: Any) -> Any:
    """Ones for a stand-in; a number for a symbol, whose value no stride depends on.

    Not what memory happens to hold: the degree of a polynomial may be one of these elements.
    """
    if not isinstance(leaf, torch.Tensor):
        return 1 if isinstance(leaf, torch.SymInt) else 1.0
    if not is_stand_in(leaf):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).fill_(1)
