"""What Python makes of numbers that vary, sizes among them, is what it makes of today's: text, classes, slices."""

from __future__ import annotations

import decimal
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn

from weft.config import overrides

Expression = Callable[[Any], Any]
EXPRESSIONS: dict[str, Expression] = {
    "text": lambda n: (str(n), repr(n), f"{n:03d}", "%s rows" % n),  # noqa: UP031 - it is one way to write a number
    "key": lambda n: {f"mask_{n}": 1},
    "class": lambda n: (isinstance(n, int), type(n) is int, isinstance(n, (int, float))),
    "size": lambda n: torch.Size([n, 2]),
    "slice": lambda n: slice(0, n),
    "range": range,
    "root": math.sqrt,
    "decimal": lambda n: str(decimal.Decimal(n)),
    "set": lambda n: {n, n + 1},
    "object": lambda n: types.SimpleNamespace(n=n),
    "choice": [3, 5].count,
    "error": lambda n: str(ValueError(f"got {n}")),
}
SIZES = (3, 5, 7, 5, 9)


def of_size(expression: Expression) -> Work:
    net = nn.Linear(8, 8)
    return Work(lambda x: (net(x), expression(x.shape[0])), [((torch.randn(n, 8),), {}) for n in SIZES])


def of_argument(expression: Expression) -> Work:
    net = nn.Linear(8, 8)
    return Work(lambda x, n: (net(x) * n, expression(n)), [((torch.randn(4, 8), n), {}) for n in SIZES])


def of_counter(expression: Expression) -> Work:
    net, counts = nn.Linear(8, 8), types.SimpleNamespace(n=0)

    def function(x: torch.Tensor) -> Any:
        counts.n += 1
        return net(x) * counts.n, expression(counts.n)

    return Work(function, [((torch.randn(4, 8),), {}) for _ in SIZES], watched=counts)


@pytest.mark.parametrize("source", [of_size, of_argument, of_counter])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_what_python_makes_of_a_number_that_varies_is_made_of_todays(name: str, source: Any) -> None:
    with overrides(whole="off"):  # a counter whose very value counts is no program's
        assert_every_way(lambda: source(EXPRESSIONS[name]), "hybridize")


def test_sizes_that_are_given_back_are_sizes_of_the_call() -> None:
    def make() -> Work:
        net = nn.Linear(8, 8)
        return Work(lambda x: (net(x), x.shape, x.size(), x.t().shape), [((torch.randn(n, 8),), {}) for n in SIZES])

    assert_every_way(make, "hybridize")


def test_what_is_printed_of_sizes_is_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    def make() -> Work:
        net = nn.Linear(8, 8)

        def function(x: torch.Tensor) -> torch.Tensor:
            print("rows", x.shape[0])
            return net(x)

        return Work(function, [((torch.randn(n, 8),), {}) for n in SIZES])

    assert_every_way(make, "hybridize")
    assert "s" not in capsys.readouterr().out.replace("rows", "")


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.storage_offset(),
        lambda x: getattr(x, "scale", 0.5),
        lambda x: float(hasattr(x, "scale")),
        lambda x: float(x._is_view()),
        lambda x: float(x._base is None),
        lambda x: x.untyped_storage().nbytes() // 4,
    ],
)
def test_what_tensors_tell_beside_sizes_is_asked_of_those_of_the_call(ask: Callable[[torch.Tensor], Any]) -> None:
    def given(number: int, rows: int) -> torch.Tensor:
        x = torch.randn(rows + 5, 8)[number % 3 :][:rows] if number % 2 else torch.randn(rows, 8)
        if number > 2:
            x.scale = 3.0  # type: ignore[attr-defined]
        return x

    def make() -> Work:
        return Work(lambda x: x * (1 + ask(x)), [((given(*entry),), {}) for entry in enumerate((3, 5, 7, 5, 9, 4))])

    assert_every_way(make, "hybridize")
