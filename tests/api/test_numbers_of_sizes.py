"""Numbers that code makes of sizes, or of numbers that vary, are those that Python computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.config import overrides

FORMS: dict[str, Callable[[int], Any]] = {
    "int(n * 1.7)": lambda n: int(n * 1.7),
    "int(n * 0.3) + 1": lambda n: int(n * 0.3) + 1,
    "2 * int(n * 0.7)": lambda n: 2 * int(n * 0.7),
    "n * 1.7": lambda n: n * 1.7,
    "n / 3": lambda n: n / 3,
    "1 / n": lambda n: 1 / n,
    "n / 3 + n // 3": lambda n: n / 3 + n // 3,
    "n // 2 * 0.1": lambda n: n // 2 * 0.1,
    "(n * 0.5 + 1) / 2": lambda n: (n * 0.5 + 1) / 2,
    "int(n / 3)": lambda n: int(n / 3),
    "int((n + 1) * 0.9)": lambda n: int((n + 1) * 0.9),
    "int(n * n * 0.15)": lambda n: int(n * n * 0.15),
    "int(-n * 0.7)": lambda n: int(-n * 0.7),
    "int(100.5 - n)": lambda n: int(100.5 - n),
    "math.floor(n * 0.7)": lambda n: math.floor(n * 0.7),
    "math.ceil(n * 0.7)": lambda n: math.ceil(n * 0.7),
    "math.floor(-n * 0.7)": lambda n: math.floor(-n * 0.7),
    "round(n * 0.7)": lambda n: round(n * 0.7),
    "round(n / 3, 1)": lambda n: round(n / 3, 1),
    "n ** 0.5": lambda n: n**0.5,
    "n ** 2": lambda n: n**2,
    "n ** -1": lambda n: n**-1,
    "2.0 ** n": lambda n: 2.0 ** (n // 8),
    "math.sqrt(n)": math.sqrt,
    "math.log(n)": math.log,
    "math.log2(n)": math.log2,
    "int(math.log2(n))": lambda n: int(math.log2(n)),
    "math.exp(-n)": lambda n: math.exp(-n / 10),
    "math.sin(n)": math.sin,
    "int(n ** 0.5)": lambda n: int(n**0.5),
    "math.isqrt(n)": math.isqrt,
    "n % 7": lambda n: n % 7,
    "-n % 7 / 2": lambda n: -n % 7 / 2,
    "n % 7.5": lambda n: n % 7.5,
    "-n // 7": lambda n: -n // 7,
    "n // 7.5": lambda n: n // 7.5,
    "divmod(n, 5)": lambda n: sum(divmod(n, 5)),
    "min(n, 30) * 0.3": lambda n: min(n, 30) * 0.3,
    "max(n - 30, 0)": lambda n: max(n - 30, 0),
    "abs(n - 30) * 0.1": lambda n: abs(n - 30) * 0.1,
    "float(n) * n": lambda n: float(n) * n,
    "n * 0.1 * 3": lambda n: n * 0.1 * 3,
    "n * 0.1 + n * 0.2": lambda n: n * 0.1 + n * 0.2,
    "n - 0.5 * (n // 4)": lambda n: n - 0.5 * (n // 4),
    "-(n / 7)": lambda n: -(n / 7),
    "int(True) * n": lambda n: int(n > 20) * n,
    "bool(n % 2)": lambda n: bool(n % 2),
    "n.bit_length()": lambda n: int(n).bit_length(),
    "n & 12": lambda n: n & 12,
    "n << 2": lambda n: n << 2,
    "1e9 * n": lambda n: 1e9 * n,
    "math.gcd(n, 12)": lambda n: math.gcd(n, 12),
    "math.prod": lambda n: math.prod((n, 2, 0.5)),
    "sum": lambda n: sum([n, 1, 0.25]),
    "complex": lambda n: (n * 1j).imag,
    "n == 31": lambda n: 1.5 if n == 31 else 0.5,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["added", "filled"])
@pytest.mark.filterwarnings("ignore")
def test_a_number_made_of_a_size_is_pythons(form: str, way: str) -> None:
    number = FORMS[form]

    def function(x: torch.Tensor) -> torch.Tensor:
        found = number(x.shape[0])
        return x + found if way == "added" else torch.full((2,), found, dtype=torch.float64) + x.mean()

    hybrid = weft.hybridize(function)
    for size in (40, 23, 57, 2, 64, 31, 30):
        x = torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(hybrid(x), function(x), rtol=1e-12, atol=1e-12)


WHOLE = ("math.isqrt(n)", "n.bit_length()", "n & 12", "n << 2", "math.gcd(n, 12)", "divmod(n, 5)")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore")
def test_a_number_made_of_one_that_varies_is_pythons(form: str) -> None:
    number = FORMS[form]
    x = torch.ones(2, dtype=torch.float64)
    given = weft.hybridize(lambda x, n: x + number(n))
    whole = weft.hybridize(lambda x, n: x + number(int(n)))
    real = weft.hybridize(lambda x, n: x + number(n.item()))
    with overrides(whole="off"):
        for n in (40, 23, 57, 2, 64, 31, 30):
            torch.testing.assert_close(given(x, n), x + number(n), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(whole(x, torch.tensor(n)), x + number(n), rtol=1e-12, atol=1e-12)
            if form not in WHOLE:
                read = torch.tensor(n + 0.25, dtype=torch.float64)
                torch.testing.assert_close(real(x, read), x + number(n + 0.25), rtol=1e-12, atol=1e-12)
