"""The runner of mutants finds the places worth changing, leaves alone what people read, and knows what runs where."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.mutants.areas import AREAS
from tests.mutants.known import known_equivalents
from tests.mutants.operators import is_worth_judging, mutants_of
from tests.mutants.reach import function_name

ROOT = Path(__file__).parents[1]

# A function's body, and lines that one of its mutants must have.
CHANGES = [
    ("return a < b", "return (a <= b)"),
    ("return a == b", "return (a != b)"),
    ("return a in b", "return (a not in b)"),
    ("return a and b", "return (a or b)"),
    ("return a or b or 1", "return (a or 1)"),
    ("return not a", "return (a)"),
    ("if a:\n        b.go()", "if True:"),
    ("if a:\n        b.go()", "if not (a):"),
    ("while a:\n        b.go()", "while False:"),
    ("return [x for x in a if x]", "return [x for x in a if True]"),
    ("b.notify_all()", "pass"),
    ("raise ValueError(a)", "pass"),
    ("with a.lock:\n        b.go()", "if True:"),
    ("if a:\n        return b\n    return 1", "pass"),
    ("a.x = b", "pass"),
    ("a += b", "a -= b"),
    ("return a[2:]", "return a[3:]"),
    ("return a[2:]", "return a[:]"),
    ("return 0", "return -1"),
    ("return True", "return False"),
    ("return min(a, b)", "return max(a, b)"),
    ("return a.f(a, b)", "return a.f(b, a)"),
    ("return a.f(key=b)", "return a.f()"),
    ("return a - b", "return (b - a)"),
    ("return {1: a, 2: b}", "return {2: b}"),
    ("return {1: a, 2: b}", "return {1: b, 2: a}"),
]


def changed(source: str) -> list[str]:
    """Give the lines that mutants of a text have and the text has not."""
    found = [one for one in mutants_of("x.py", source.encode()) if is_worth_judging(one, source.encode())]
    lines = [line for one in found for line in one.difference(source.encode()).split("\n")]
    return [line[1:].strip() for line in lines if line.startswith("+")]


@pytest.mark.parametrize("body, expected", CHANGES)
def test_each_kind_of_change_is_made(body: str, expected: str) -> None:
    assert expected in changed(f"def f(a, b):\n    {body}\n")


def test_a_function_may_do_nothing_or_always_say_the_same() -> None:
    assert "return" in changed("def f(a) -> None:\n    a.go()\n    a.stop()\n")
    assert "return True" in changed("def f(a) -> bool:\n    b = a + 1\n    return b > 2\n")


def test_rows_of_a_table_of_the_module_may_be_missing() -> None:
    assert "T = (g(2),)" in changed("T = (g(1), g(2))\n")


@pytest.mark.parametrize(
    "source",
    [
        '"""Say 1."""\n',
        "def f(a: dict[int, 2]) -> Literal[1]:\n    'Give 1.'\n    return a\n",
        "def f(a):\n    log.info('%s', 1)\n",
        "class A:\n    def __repr__(self):\n        return 'A' * 3\n",
        "@g(1, 2)\ndef f(a):\n    return a\n",
        "__all__ = ['a', 'b']\n",
        "def f(a):\n    return f'{a + 1}'\n",
    ],
)
def test_what_people_read_is_left_alone(source: str) -> None:
    assert changed(source) == []


def test_the_sentence_of_an_error_is_left_alone_but_not_its_raise() -> None:
    assert changed("def f(a):\n    raise UsageError(g(1, 2), where=a)\n") == ["pass"]


def test_a_comprehension_belongs_to_its_function() -> None:
    found: list[str] = []

    class Holder:
        def method(self) -> list[int]:
            return [found.append(function_name(__import__("sys")._getframe().f_code)) or 1 for _ in range(1)]

    Holder().method()
    assert found[0].endswith("Holder.method")


@pytest.mark.parametrize("area", AREAS)
def test_every_pattern_of_an_area_finds_files(area: str) -> None:
    for pattern in AREAS[area].sources:
        assert list((ROOT / "src" / "weft").glob(pattern)), pattern
    for pattern in AREAS[area].tests:
        assert list((ROOT / "tests").glob(pattern)), pattern


def test_every_mutant_called_equivalent_has_a_reason_and_a_file() -> None:
    for (path, difference), reason in known_equivalents().items():
        assert reason
        assert difference.startswith("-")
        assert (ROOT / path).is_file()
