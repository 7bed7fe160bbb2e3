"""A Python number that changes from call to call is an input of the program, unless it decides something."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients

import weft
from weft.api.numbers import FreeNumbers
from weft.trace.signature import leaf_key

pytestmark = pytest.mark.usefixtures("by_library")


def agree(function: Any, calls: list[tuple[Any, ...]]) -> Any:
    hybrid = weft.hybridize(function)
    for arguments in calls:
        expected, found = function(*arguments), hybrid(*arguments)
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)
    return hybrid


def test_a_number_that_changes_is_traced_twice_and_then_free() -> None:
    x = torch.randn(3)
    hybrid = agree(lambda x, scale: x * scale, [(x, 0.5 * step) for step in range(10)])
    assert hybrid.traces == 2
    assert "any float" in str(weft.explain(hybrid))


def test_arithmetic_on_free_numbers_is_part_of_the_program() -> None:
    x = torch.randn(3)
    hybrid = agree(lambda x, a: x * a + torch.add(x, x, alpha=a * 2) - (a + 1.5), [(x, 0.1 * k) for k in range(8)])
    assert hybrid.traces == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a, b: a * x.sin() + (1 - a) * x.cos() + b,
        lambda x, a, b: x * (a + b) - (3 - 2 * a * b),
        lambda x, a, b: x * (a * b - 1) * 0.5 + (b - a),
    ],
)
def test_sums_and_products_of_free_numbers_are_part_of_the_program(function: Any) -> None:
    x = torch.randn(3, dtype=torch.float64)
    hybrid = agree(function, [(x, 0.1 * k + 0.03, 0.7 - 0.2 * k) for k in range(6)])
    assert hybrid.traces == 2


@pytest.mark.parametrize("number", [3, 2**40, -7, 0])
def test_whole_numbers_become_free_too(number: int) -> None:
    x = torch.arange(5)
    hybrid = agree(lambda x, n: x * n + n, [(x, 1), (x, 2), (x, number), (x, number + 1)])
    assert hybrid.traces == 2


def test_an_int_a_float_and_a_bool_have_programs_of_their_own() -> None:
    x = torch.arange(4)
    hybrid = agree(lambda x, n: x * n, [(x, 1), (x, 1.0), (x, True), (x, 2), (x, 2.0), (x, 3.0), (x, 4)])
    assert hybrid(x, 5.0).dtype is torch.float32
    assert hybrid(x, 5).dtype is torch.int64


def test_a_number_that_decides_a_branch_gets_a_program_for_each_value() -> None:
    x = torch.randn(3)
    hybrid = agree(lambda x, p: x if p > 1 else -x, [(x, p) for p in (0.5, 1.5, 0.5, 2.5)])
    assert hybrid.traces == 3


def test_a_number_that_is_a_size_gets_a_program_for_each_value() -> None:
    x = torch.randn(8)
    hybrid = agree(lambda x, n: x[:n].repeat(n), [(x, n) for n in (1, 2, 3, 2)])
    assert hybrid.traces == 3


def test_of_two_numbers_the_one_that_decides_is_written_in_and_the_other_free() -> None:
    x = torch.randn(6)
    calls = [(x, 0.1 * step, 2 + step % 2) for step in range(8)]
    hybrid = agree(lambda x, scale, n: x[:n] * scale, calls)
    assert hybrid.traces <= 6


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 0.0, -0.0, 5e-324, 1e308])
def test_special_numbers_give_what_eager_gives(number: float) -> None:
    x = torch.tensor([1.0, -1.0, 0.0])
    hybrid = weft.hybridize(lambda x, a: x * a)
    for a in (0.5, 1.5, number, 2.5, number):
        assert torch.equal(hybrid(x, a).isnan(), (x * a).isnan())
        assert torch.equal(hybrid(x, a).nan_to_num(9.0), (x * a).nan_to_num(9.0))
        assert torch.equal(hybrid(x, a).signbit(), (x * a).signbit())


def test_numbers_are_free_where_gradients_flow() -> None:
    function = lambda x, a: (x * a).sin()  # noqa: E731  # both are called
    hybrid = weft.hybridize(function)
    x = torch.randn(3, requires_grad=True)
    for a in (0.5, 1.5, 2.5, 3.5):
        found, expected = hybrid(x, a), function(x, a)
        assert torch.equal(found, expected)
        assert torch.equal(gradients(found.sum(), [x])[0], gradients(expected.sum(), [x])[0])
    assert hybrid.traces == 2


def test_a_number_that_is_returned_is_the_number_of_this_call() -> None:
    hybrid = weft.hybridize(lambda x, n: (x + n, n, n * 2))
    x = torch.ones(2)
    for n in (1.5, 2.5, 3.5, 4.5):
        found, same, double = hybrid(x, n)
        assert torch.equal(found, x + n)
        assert (same, double) == (n, n * 2)
        assert type(double) is float


def test_numbers_that_overflow_are_written_in() -> None:
    free = FreeNumbers()
    before, now = (("s",), (leaf_key(1),), ()), (("s",), (leaf_key(2),), ())
    free.compare(before, now)
    assert free.free(("s",)) == {0}
    assert free.apply(("s",), (leaf_key(3),)) == ((int, "any"),)
    assert free.apply(("s",), (leaf_key(2**70),)) == (leaf_key(2**70),)
    free.fix(("s",), frozenset({0}))
    free.compare(before, now)
    assert free.free(("s",)) == frozenset()


def test_something_else_in_the_place_of_a_number_fixes_none() -> None:
    hybrid = weft.hybridize(lambda x, number: x * number + 1)
    x = torch.randn(4, 3)
    with torch.no_grad():
        for number in (3, 4, True, math.inf, 2**63 - 1, 5, 6, 7, 8, 9):
            torch.testing.assert_close(hybrid(x, number), x * number + 1)
    assert hybrid.traces <= 5  # written in, free, and one each of those that are none


def test_pytorch_logs_nothing_of_how_it_counts_with_numbers(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("torch.utils._sympy.interp")
    log.addHandler(caplog.handler)
    try:
        hybrid = weft.hybridize(lambda x, number: x * (-1) ** number)
        with torch.no_grad():
            for number in (1, 2, 3, 4):
                torch.testing.assert_close(hybrid(torch.ones(3), number), torch.ones(3) * (-1) ** number)
    finally:
        log.removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
