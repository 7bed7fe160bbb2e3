"""Let what Python raises for some numbers alone (a division by zero, an overflow) decide by numbers that are stood for.

Code may catch it: what it does then is right for no other numbers, so that these are written into the program. And what
divides in a program must not be zero in a run of it: `not_zero` of a table of symbols says so of what has divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from weft.trace.interception.long_numbers import KINDS
from weft.trace.interception.modes import answer_otherwise, shapes_of
from weft.trace.interception.number_texts import CLASSES
from weft.trace.interception.user_lines import UnplacedShapes

DIVIDING = ("__truediv__", "__floordiv__", "__mod__")
REVERSED = ("__rtruediv__", "__rfloordiv__", "__rmod__")
OTHERS = ("__pow__", "__rpow__")


def divided(one: Any, other: Any) -> Any:
    """The builtin `divmod`, also of what stands for numbers, which PyTorch's symbols leave out."""
    is_symbol = isinstance(one, torch.SymInt) or isinstance(other, torch.SymInt)
    return (one // other, one % other) if is_symbol else divmod(one, other)


def _decide(numbers: Iterable[Any]) -> None:
    """Let a program hold for these numbers alone."""
    for number in numbers:
        if isinstance(number, KINDS):
            CLASSES[type(number)](number)


def _follow(kind: Any, name: str) -> None:
    usual: Callable[[Any, Any], Any] = getattr(kind, name)

    def followed(self: Any, other: Any) -> Any:
        shapes = shapes_of(self)
        if not isinstance(shapes, UnplacedShapes):
            return usual(self, other)
        try:
            found = usual(self, other)
        except (ArithmeticError, ValueError):
            _decide((self, other))
            raise
        divisor = other if name in DIVIDING else self if name in REVERSED else None
        if isinstance(divisor, KINDS):
            is_there: Any = divisor != 0
            shapes.not_zero.append(is_there.node.expr)
        return found

    answer_otherwise(kind, **{name: followed})


for _kind in KINDS:
    for _name in (*DIVIDING, *REVERSED, *OTHERS):
        if hasattr(_kind, _name):
            _follow(_kind, _name)
