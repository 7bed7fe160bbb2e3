"""Write what traced code makes of sizes as sums, products and quotients: PyTorch's symbols, and Polynomials of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from operator import gt, lt
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import FloorDiv  # type: ignore[attr-defined]

from weft.ir.extents import FixedSizeError, Polynomial
from weft.ir.graph import Value

Quotient = Callable[[Any, Any], Any]  # of two expressions, rounded down
REMAINDERS = ("Mod", "PythonMod")
ROUNDED, UP = ("FloorToInt", "TruncToInt", "CeilToInt"), ("CeilToInt", "CeilDiv")
QUOTIENTS = ("FloorDiv", "CleanDiv")
WRITTEN = (*REMAINDERS, *ROUNDED, *UP, "FloorDiv")
FRACTIONS = ("IntTrueDiv", "FloatTrueDiv")
LEAST_PART = 1 << 20  # of a fraction that a size is multiplied by
DOWN = ("FloorToInt", "TruncToInt")
LARGEST_DENOMINATOR = 1 << 12  # of a fraction that is meant where a float is near it
MOST_TRIED = 1 << 20  # sizes for which it is seen to be


@lru_cache(maxsize=4096)
def of_quotients(expression: Any, over: Quotient) -> Any:
    """An expression of sizes without remainders, and without what is rounded up.

    Then a size that is padded to a multiple of 8 is `8*((size+7)//8)`, however the code says so, and what is divided
    by 8 again is no quotient of quotients. PyTorch asks of what it cannot simplify whether it is 1, or divides.
    """

    def rewritten(one: Any) -> Any:
        name, (dividend, *others) = type(one).__name__, one.args
        if name in ROUNDED:
            dividend, *others = _divided(dividend)
            if name == "TruncToInt" and any(factor < 0 for factor in _factors(dividend).values()):
                return one  # of what may be less than nothing
        is_number = bool(others) and (isinstance(others[0], int) or others[0].is_number)
        divisor = int(others[0]) if is_number and others[0] == int(others[0]) else 0
        if divisor <= 0:
            return one
        if name in UP:
            dividend += divisor - 1
        down = _down(dividend, divisor, over)
        return dividend - divisor * down if name in REMAINDERS else down

    before = None
    while expression != before:  # what is divided out leaves another quotient
        before = expression
        expression = expression.replace(lambda one: type(one).__name__ in WRITTEN, rewritten)
    return expression


def _factors(dividend: Any) -> Mapping[Any, Any]:
    found: Mapping[Any, Any] = dividend.expand().as_coefficients_dict()
    return found


def _down(dividend: Any, divisor: int, over: Quotient) -> Any:
    """A quotient rounded down; of what is less than nothing, another one rounded up."""
    factors = [factor for term, factor in _factors(dividend).items() if not term.is_number]
    if factors and all(factor < 0 for factor in factors):
        return -over((divisor - 1 - dividend).expand(), divisor)
    return over(dividend, divisor)


def _divided(fraction: Any) -> tuple[Any, ...]:
    """What is divided in a fraction, and by what, where arithmetic on floats is exact: also in `size * 0.5`."""
    if type(fraction).__name__ in FRACTIONS or fraction.is_integer:
        return fraction.args if not fraction.is_integer else (fraction, 1)
    first, *others = fraction.args or (fraction,)
    if not (fraction.is_Mul and len(others) == 1 and first.is_Float):
        return (fraction,)
    over, under = float(first).as_integer_ratio()
    size = others[0].args[0] if type(others[0]).__name__ == "ToFloat" else others[0]
    return (over * size, under) if size.is_integer and under <= LEAST_PART else (fraction,)


def decided(expression: Any, shapes: Any) -> Any:
    """An expression without the smaller or larger of sizes, and without quotients by parts of them.

    Which one it is is decided as it is for the largest sizes, and whether parts are all of a size; both are guards.
    """

    def rewritten(one: Any) -> Any:
        name = type(one).__name__
        if name in QUOTIENTS:
            return _by_parts(one, shapes)
        if name in DOWN:
            return _of_fraction(one, shapes)
        # Of equal ones the last, as numbers come first: 1 or a size, where a stride is of a dimension of one or more.
        comes_first = gt if name == "Max" else lt
        return reduce(
            lambda first, other: first if bool(shapes.evaluate_expr(comes_first(first, other))) else other, one.args
        )

    return expression.replace(lambda one: type(one).__name__ in ("Min", "Max", "FloorDiv", *DOWN), rewritten)


def _of_fraction(rounded: Any, shapes: Any) -> Any:
    """What is rounded down of a size times a fraction that no float is, `int(size * 0.7)`, as a quotient of the size.

    Floats are rounded: the quotient is the same for all sizes up to the largest, each of which is looked at.
    """
    product = rounded.args[0]
    if not (product.is_Mul and len(product.args) == 2 and product.args[0].is_Float and product.args[0] > 0):
        return rounded
    factor, size = product.args
    size = size.args[0] if type(size).__name__ == "ToFloat" else size
    if not size.is_integer or min(_factors(size).values()) < 0 or not shapes.sizes.keys() >= size.free_symbols:
        return rounded
    tops = {one: shapes.largest.get(shapes.sizes[one], shapes.hints[one]) for one in size.free_symbols}
    ratio = _ratio_up_to(float(factor), int(size.xreplace(tops)))
    return rounded if ratio is None else FloorDiv(size * ratio.numerator, ratio.denominator)


@lru_cache(maxsize=256)
def _ratio_up_to(factor: float, largest: int) -> Fraction | None:
    """The quotient by which whole numbers up to a largest one are multiplied and rounded down as by a float."""
    if largest > MOST_TRIED:
        return None
    numbers = np.arange(largest + 1)
    found = Fraction(factor).limit_denominator(LARGEST_DENOMINATOR)
    same = np.floor(numbers * factor).astype(np.int64) == numbers * found.numerator // found.denominator
    return found if same.all() else None


def _by_parts(quotient: Any, shapes: Any) -> Any:
    """The quotient by parts of sizes: of s words by s//4 windows it is 4, where the windows are all of it."""
    dividend, divisor = quotient.args
    parts = [part for part in divisor.find(lambda one: type(one).__name__ == "FloorDiv") if part.args[1].is_number]
    whole = [part for part in parts if shapes.evaluate_expr(part * part.args[1] >= part.args[0])]
    if not whole:  # of nearly all: cancelling is what takes time
        return quotient
    exact = (dividend / divisor.xreplace({part: part.args[0] / part.args[1] for part in whole})).cancel()
    return exact if exact.as_numer_denom()[1] == 1 else quotient


def made_of(expression: Any, shapes: Any) -> Polynomial | int:
    """What a size is made of, decided once for a trace: its tensors have few sizes, each asked for again and again."""
    known: dict[Any, Polynomial | int] = vars(shapes).setdefault("made", {})
    if expression not in known:
        made = decided(expression, shapes)
        known[expression] = int(made) if made.is_number else polynomial_of(made, shapes.sizes)
    return known[expression]


def polynomial_of(expression: Any, sizes: Mapping[Any, Value]) -> Polynomial:
    """An expression of symbols as a Polynomial of the sizes that they stand for."""
    if expression.is_Integer:
        return Polynomial.constant(int(expression))
    if expression.is_Symbol and expression in sizes:
        return Polynomial.atom(sizes[expression])
    parts = [polynomial_of(part, sizes) for part in expression.args]
    if expression.is_Add or expression.is_Mul:
        return reduce(Polynomial.plus if expression.is_Add else Polynomial.times, parts)
    divisor = parts[-1].number if parts else None
    if expression.is_Pow and divisor is not None and divisor > 0:
        return reduce(Polynomial.times, [parts[0]] * divisor)
    if type(expression).__name__ in QUOTIENTS:
        quotient = parts[0].over(divisor) if divisor and divisor > 0 else parts[0].over_size(parts[1])
        if quotient is not None:
            return quotient
    raise FixedSizeError(f"a size is {expression}")


def is_made_of_sizes(number: torch.SymInt | torch.SymFloat) -> bool:
    """Whether sizes are among what a number is made of."""
    return not number.node.expr.free_symbols.isdisjoint(number.node.shape_env.sizes)
