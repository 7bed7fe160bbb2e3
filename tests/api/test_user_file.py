"""A file of the user's that does not run is said with its own line, whatever is wrong with it."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from weft.api.user_file import LONGEST, one_line, place_in, run_file
from weft.errors import UsageError


@pytest.mark.parametrize(
    "text, line",
    [
        ("x = 1\ndef net(:\n", "user.py:2   def net(:"),
        ("import missing_module_of_nobody\n", "user.py:1   import missing_module_of_nobody"),
        ("def inner():\n    raise ValueError\ninner()\n", "user.py:2   raise ValueError"),
        ("import sys\nsys.exit(3)\n", "user.py:2   sys.exit(3)"),
    ],
)
def test_the_line_that_stops_a_file_is_named(text: str, line: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    linecache.clearcache()  # which knows files by their name
    Path("user.py").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"user\.py does not run") as caught:
        run_file(Path("user.py"))
    assert caught.value.where == line


def test_what_a_file_defines_knows_its_module(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text("import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: int\n", encoding="utf-8")
    point = run_file(path)["Point"]
    assert point(3) == point(3)


def test_an_error_is_said_on_one_line_without_colours() -> None:
    assert one_line(ValueError("\x1b[31m\n red \x1b[0m\nmore")) == "ValueError: red"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 999))) == LONGEST
    assert place_in(ValueError("never raised")) is None
