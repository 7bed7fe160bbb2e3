"""Conditions on sizes are arithmetic, and nothing else."""

from __future__ import annotations

import pytest

from weft.errors import UsageError
from weft.ir.size_text import read_condition

NAMES = {"n", "m"}


@pytest.mark.parametrize(
    ("text", "sizes", "expected"),
    [
        ("n > 8", {"n": 9}, True),
        ("n > 8", {"n": 8}, False),
        ("(n % 2) == 0 and not m == 3", {"n": 4, "m": 3}, False),
        ("2 <= n <= m or n == 1", {"n": 1, "m": 0}, True),
        ("max(n - 3, 0)//2 + 1 != m*-1", {"n": 5, "m": 2}, True),
        ("n % m == 0", {"n": 5, "m": 0}, False),
    ],
)
def test_a_condition_holds_or_not(text: str, sizes: dict[str, int], expected: bool) -> None:
    assert read_condition(text, NAMES)(sizes) is expected


@pytest.mark.parametrize(
    "text",
    [
        "k > 1",
        "n.real",
        "__import__('os')",
        "eval(n)",
        "(lambda: 1)()",
        "n ** 99999",
        "n << 5",
        "[n]",
        "'a' * n",
        "1.5 > n",
        "n > ",
        "max()",
        "max(n, key=n)",
        "n[0]",
        "99999999999999999999 > n",
        "(" * 2000 + "n" + ")" * 2000,
        " + ".join(["n"] * 2000),
        "n := 3",
        "n\0",
    ],
)
def test_nothing_but_arithmetic_on_known_names_is_understood(text: str) -> None:
    with pytest.raises(UsageError, match="is not understood"):
        read_condition(text, NAMES)
