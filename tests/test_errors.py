"""Errors say a fact, a place, a reason and a remedy."""

from __future__ import annotations

import copy
import linecache
import pickle
import sys
import types
from pathlib import Path

import pytest

from weft.errors import (
    ExecutionError,
    InternalError,
    UnsupportedError,
    UsageError,
    WeftError,
    counted,
    first_line_of,
    short_path,
    source_line,
)

CLASSES = (WeftError, UsageError, UnsupportedError, ExecutionError, InternalError)


def test_an_error_prints_a_fact_a_place_a_reason_and_a_remedy() -> None:
    error = UnsupportedError(
        "net.forward branches on the value of a tensor",
        where="model.py:41   if x.sum() > 0:",
        why="the branch would be frozen",
        fix="use torch.where",
    )
    assert str(error) == (
        "net.forward branches on the value of a tensor\n"
        "  where model.py:41   if x.sum() > 0:\n"
        "  why   the branch would be frozen\n"
        "  fix   use torch.where"
    )


def test_missing_parts_are_left_out() -> None:
    assert str(UsageError("no such op")) == "no such op"
    assert str(UsageError("no such op", fix="use add")) == "no such op\n  fix   use add"


def test_a_part_of_several_lines_stays_in_its_column() -> None:
    assert str(UsageError("two reasons", why="one\ntwo")) == "two reasons\n  why   one\n        two"


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_pickle_and_copy(cls, duplicate) -> None:
    error = cls("fact", where="here", why="because", fix="so")
    twin = duplicate(error)
    assert type(twin) is cls
    assert (twin.fact, twin.where, twin.why, twin.fix) == ("fact", "here", "because", "so")
    assert str(twin) == str(error)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (UsageError, ValueError),
        (UnsupportedError, NotImplementedError),
        (ExecutionError, RuntimeError),
        (InternalError, RuntimeError),
    ],
)
def test_each_class_can_be_caught_as_the_builtin_that_python_users_expect(cls, builtin) -> None:
    assert issubclass(cls, WeftError)
    assert issubclass(cls, builtin)


def test_a_place_in_source_code_has_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text("x = 1\n    if x.sum() > 0:\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert source_line(str(tmp_path / "model.py"), 2) == "model.py:2   if x.sum() > 0:"


def test_a_place_without_text_is_named_all_the_same() -> None:
    assert source_line("<string>", 3) == "<string>:3"


def test_a_very_long_line_is_cut(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = " + "1 + " * 100 + "1\n", encoding="utf-8")
    place = source_line(str(tmp_path / "long.py"), 1)
    assert place.endswith("...")
    assert len(place) < 140


def test_paths_are_shortened_to_what_a_reader_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "models" / "net.py")) == "models/net.py"
    monkeypatch.syspath_prepend(str(tmp_path / "models"))
    assert short_path(str(tmp_path / "models" / "net.py")) == "net.py"
    assert short_path(str(tmp_path.parent / "elsewhere.py")) == "elsewhere.py"
    assert short_path("relative.py") == "relative.py"


def test_one_thing_is_not_many() -> None:
    assert [counted(number, "stop") for number in (0, 1, 2)] == ["0 stops", "1 stop", "2 stops"]


def test_cells_of_notebooks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "/tmp/ipykernel_17/2381.py"
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={file: 5}))
    assert short_path("<ipython-input-3-6f2a>") == "cell 3"
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert short_path(file) == "a cell of the notebook"
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(linecache.cache, file, (1, None, ["x = 1\n"], file))
    assert source_line(file, 1) == "cell 5:1   x = 1"
    assert short_path("/tmp/ipykernel_17/other/2381.py") == "2381.py"


def test_of_what_others_raise_the_first_line_is_told() -> None:
    error = RuntimeError("\nCannot call numel() on it\nException raised from throw at TensorImpl.cpp:340\nframe #0")
    assert first_line_of(error) == "RuntimeError: Cannot call numel() on it"
