"""Sizes that are equal are written alike, however they were made."""

from __future__ import annotations

import pytest

from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.ir.types import NumberType

SIZE = Value("input", (), NumberType("int"), name="size")
X = Polynomial.atom(SIZE)


def plus(one: Polynomial, number: int) -> Polynomial:
    return one.plus(Polynomial.constant(number))


def times(one: Polynomial, number: int) -> Polynomial:
    return one.times(Polynomial.constant(number))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (times(times(X, -1).over(8), -8), "((size+7)//8)*8"),
        (times(plus(X, 7).over(8), 8).over(8), "(size+7)//8"),
        (plus(plus(X, 7).over(8), 8).over(4), "(size+7)//32+2"),
        (plus(X, -3).over(2), "(size+1)//2-2"),
        (plus(plus(X, 1).over(2), 1).over(2), "(size+3)//4"),
    ],
)
def test_quotients_are_written_in_one_way(made: Polynomial, text: str) -> None:
    assert str(made) == text


@pytest.mark.parametrize("divisor", [1, 2, 3, 8])
@pytest.mark.parametrize(("factor", "more"), [(1, -5), (-1, 3), (-3, 0), (4, 9), (6, -1)])
def test_quotients_are_python_s(factor: int, more: int, divisor: int) -> None:
    dividend = plus(times(X, factor), more)
    found = plus(dividend.over(divisor), 3).over(5)
    for size in range(20):
        assert found.value({SIZE: size}.__getitem__) == ((factor * size + more) // divisor + 3) // 5
