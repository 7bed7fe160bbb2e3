"""List the arithmetic of Python numbers that a Graph can do: what a number that changes between calls goes through."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NumberOperator:
    """One operator on Python numbers: how many it takes, and the function."""

    arity: int
    function: Callable[..., Any]


NUMBER_OPERATORS: dict[str, NumberOperator] = {
    "add": NumberOperator(2, operator.add),
    "sub": NumberOperator(2, operator.sub),
    "mul": NumberOperator(2, operator.mul),
    "truediv": NumberOperator(2, operator.truediv),
    "floordiv": NumberOperator(2, operator.floordiv),
    "mod": NumberOperator(2, operator.mod),
    "pow": NumberOperator(2, operator.pow),
    "neg": NumberOperator(1, operator.neg),
    "abs": NumberOperator(1, operator.abs),
    "int": NumberOperator(1, int),
    "float": NumberOperator(1, float),
    "bool": NumberOperator(1, bool),
}
