"""Write numbers that are computed in very many steps of others into the program.

What stands for a number is an expression, which PyTorch expands at each step: ten rounds of Newton's method on what
`.item()` gave are a million terms. A program for the very number, or Python where there is none, comes at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from weft.trace.interception.modes import answer_otherwise, shapes_of
from weft.trace.interception.number_texts import CLASSES
from weft.trace.interception.user_lines import UnplacedShapes

# Terms that a step may make of its two numbers, if it multiplies them out: sizes of parts of parts have very many.
MOST_TERMS: Mapping[Any, int] = MappingProxyType({torch.SymInt: 8192, torch.SymFloat: 256})
KINDS = tuple(MOST_TERMS)
STEPS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow)


def _terms(number: Any, most: int) -> int:
    """The parts of an expression, counted no further than is needed."""
    if not isinstance(number, KINDS):
        return 1
    waiting, count = [number.node.expr], 0
    while waiting and count <= most:
        count += 1
        waiting.extend(waiting.pop().args)
    return count


def _plain(number: Any) -> Any:
    """The number of this call, for which alone the program holds then."""
    return CLASSES[type(number)](number) if isinstance(number, KINDS) else number


def _follow(kind: Any, name: str, step: Callable[[Any, Any], Any], *, is_reversed: bool) -> None:
    usual: Callable[[Any, Any], Any] = getattr(kind, name)
    most = MOST_TERMS[kind]

    def followed(self: Any, other: Any) -> Any:
        if not isinstance(shapes_of(self), UnplacedShapes) or _terms(self, most) * _terms(other, most) <= most:
            return usual(self, other)
        pair = (_plain(other), _plain(self)) if is_reversed else (_plain(self), _plain(other))
        return step(*pair)

    answer_otherwise(kind, **{name: followed})


for _kind in KINDS:
    for _step in STEPS:
        _name = _step.__name__
        for _own in (f"__{_name}__", f"__r{_name}__"):
            if hasattr(_kind, _own):
                _follow(_kind, _own, _step, is_reversed=_own != f"__{_name}__")
