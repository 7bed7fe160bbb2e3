"""Operators whose shape rule in PyTorch differs from what they return -> the right stand-in for their result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

NO_REDUCTION = 0


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


CORRECTIONS: Mapping[str, Callable[[Any, tuple[Any, ...]], Any]] = MappingProxyType(
    {
        "aten.multilabel_margin_loss_forward.default": _multilabel_margin,
        "aten.log_sigmoid_forward.default": _log_sigmoid,
    }
)
