"""What is no path is refused in the one format of errors, by every public function that takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import weft

NET = torch.nn.Linear(3, 2)


def made() -> Any:
    return weft.program(NET, torch.ones(1, 3))


def loaded() -> Any:
    made().save("net.weft")
    return weft.load_program("net.weft")


TAKERS: dict[str, Callable[[Any], object]] = {
    "load_program": weft.load_program,
    "export": lambda path: weft.export(made(), path),
    "program.save": lambda path: made().save(path),
    "draw": lambda path: made().draw(path),
    "a loaded program's draw": lambda path: loaded().draw(path),
    "timeline": lambda path: made().timeline(path),
    "save": lambda path: weft.save(path, NET),
    "load": lambda path: weft.load(path, NET),
    "Checkpoints": weft.Checkpoints,
    "trace_to": weft.trace_to,
}
WRITERS = ("program.save", "draw", "a loaded program's draw", "timeline", "save", "trace_to")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given", [3, b"net", ["net"], "a\0b"], ids=["number", "bytes", "list", "zero"])
@pytest.mark.parametrize("name", TAKERS)
def test_what_is_no_path_is_told_with_the_call(name: str, given: object) -> None:
    with pytest.raises(weft.UsageError, match=r"takes a path, not (int|bytes|list|'a)") as caught:
        TAKERS[name](given)
    assert caught.value.why
    assert caught.value.fix
    assert '("' in caught.value.fix or 'net"' in caught.value.fix


@pytest.mark.parametrize("given", ["", ".", "..", "/"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_is_no_file_to_write(name: str, given: str) -> None:
    with pytest.raises(weft.UsageError, match=r"writes a file, and \S+ is a folder"):
        TAKERS[name](given)


@pytest.mark.parametrize("path", ["net.png", "net.pdf", "net"])
def test_a_picture_says_which_endings_it_can_have(path: str) -> None:
    for program in (made(), loaded()):
        with pytest.raises(weft.UsageError, match=r"net(\.\w+)? (ends with \.\w+|has no ending)") as caught:
            program.draw(path)
        assert (caught.value.why, caught.value.fix) == ("draw writes .svg", 'program.draw("net.svg")')
        assert not Path(path).exists()
    made().draw("net.SVG")
    made().draw("/dev/null")


def test_a_timeline_that_cannot_be_written_is_told_in_the_one_format() -> None:
    with pytest.raises(weft.ExecutionError, match="could not be written"):
        made().timeline("absent/call.json")


@pytest.mark.parametrize("given", [3, NET, "net.weft"])
def test_what_is_no_program_is_not_exported(given: Any) -> None:
    with pytest.raises(weft.UsageError, match=r"export takes a program, not (int|Linear|str)") as caught:
        weft.export(given, "net")
    assert caught.value.fix == 'weft.export(weft.program(net, x), "net")'
