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


CORRECTIONS: Mapping[str, Callable[[Any, tuple[Any, ...]], Any]] = MappingProxyType(
    {"aten.multilabel_margin_loss_forward.default": _multilabel_margin}
)
