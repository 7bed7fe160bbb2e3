"""What is no path is refused in the one format of errors, by every public function that takes one."""

from __future__ import annotations

import contextlib
import os
import re
import socket
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
    "Animator": lambda path: weft.Animator(path=path),
}
WRITERS = ("program.save", "draw", "a loaded program's draw", "timeline", "save", "trace_to", "Animator")


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
    assert re.search(r'\((path=)?"|net"', caught.value.fix)


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


LATE: dict[str, Callable[[Any], object]] = {
    "trace_to": weft.trace_to,
    "Animator": lambda path: weft.Animator(path=path),
}


@pytest.mark.parametrize("path", ["absent/x.svg", "file/x.svg", "closed/x.svg"])
@pytest.mark.parametrize("name", LATE)
def test_what_is_written_later_says_at_the_call_that_it_cannot_be(
    name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("", encoding="ascii")
    Path("closed").mkdir()
    access = os.access  # root may write everywhere
    monkeypatch.setattr("os.access", lambda folder, mode: Path(folder).name != "closed" and access(folder, mode))
    pattern = rf"^{name} {path}: (there is no folder absent|file is no folder|the folder closed may not be written)"
    with pytest.raises(weft.UsageError, match=pattern) as caught:
        LATE[name](path)
    assert caught.value.fix


@pytest.mark.parametrize("name", LATE)
def test_pipes_and_devices_can_be_written_whatever_their_folder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda folder, mode: False)
    with contextlib.ExitStack() as stack:
        opened = LATE[name]("/dev/null")
        if isinstance(opened, contextlib.AbstractContextManager):
            stack.enter_context(opened)


def test_a_folder_of_checkpoints_that_may_not_be_written_is_told_before_the_first_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("runs").mkdir()
    monkeypatch.setattr("os.access", lambda folder, mode: False)
    with pytest.raises(weft.CheckpointError, match="the folder runs may not be written"):
        weft.Checkpoints("runs").make_folder()


def test_a_plot_that_cannot_be_written_any_more_is_told_in_the_one_format() -> None:
    Path("plots").mkdir()
    animator = weft.Animator(path="plots/curve.svg")
    Path("plots").rmdir()
    with pytest.raises(weft.ExecutionError, match=r"curve.svg could not be written\n  why   No such file"):
        animator.add(1, 0.5)


@pytest.mark.parametrize("given", [3, NET, "net.weft"])
def test_what_is_no_program_is_not_exported(given: Any) -> None:
    with pytest.raises(weft.UsageError, match=r"export takes a program, not (int|Linear|str)") as caught:
        weft.export(given, "net")
    assert caught.value.fix == 'weft.export(weft.program(net, x), "net")'


TOO_LONG = ["x" * 256, "ü" * 128, "x" * 300 + "/net.weft", "/".join(["folder"] * 1000) + "/net.weft"]


@pytest.mark.parametrize("given", TOO_LONG, ids=["name", "letters of two bytes", "folder", "path"])
@pytest.mark.parametrize("name", TAKERS)
def test_a_name_that_is_too_long_is_told_as_such(name: str, given: str) -> None:
    with pytest.raises(weft.UsageError, match=r"the path .{60}\.\.\. is too long") as caught:
        TAKERS[name](given)
    assert f"{len(os.fsencode(given)):,} bytes in all" in str(caught.value.why)


@pytest.mark.parametrize("name", TAKERS)
def test_text_that_no_name_can_have_is_told(name: str) -> None:
    with pytest.raises(weft.UsageError, match=r"takes a path, not .*ud800.*\n  why   it is no text"):
        TAKERS[name]("a\ud800")


@pytest.mark.parametrize("given", ["~/net.weft", "~root/net.weft", "~"])
@pytest.mark.parametrize("name", TAKERS)
def test_the_shells_name_of_the_home_folder_makes_no_folder(name: str, given: str) -> None:
    with pytest.raises(weft.UsageError, match=r"there is no folder ~") as caught:
        TAKERS[name](given)
    assert "expanduser()" in str(caught.value.fix)
    assert not list(Path().glob("~*"))


def test_a_file_and_a_folder_that_begin_with_the_shells_sign_are_what_they_are() -> None:
    weft.save("~net", NET)
    Path("~").mkdir()
    weft.save("~/net", NET)
    assert weft.load("~/net", NET).report is not None
    assert weft.load("~net", NET).report is not None


@pytest.mark.parametrize("name", WRITERS)
def test_a_slash_at_the_end_asks_for_a_folder(name: str) -> None:
    with pytest.raises(weft.UsageError, match=r"writes a file, and net\.svg is a folder"):
        TAKERS[name]("net.svg/")
    assert not Path("net.svg").exists()


@pytest.mark.parametrize("name", ["load", "load_program", "Checkpoints", "export"])
def test_an_empty_text_is_not_the_folder_where_the_process_runs(name: str) -> None:
    with pytest.raises(weft.UsageError, match="takes a path, not ''"):
        TAKERS[name]("")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", WRITERS)
def test_a_pipe_that_nobody_reads_and_a_socket_are_written_by_nobody(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.whole_file.PATIENCE", 0.02)
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        for path in ("pipe", "socket", "loop"):
            if name == "trace_to":
                with pytest.raises(weft.WeftError), weft.trace_to(path):
                    pass
            elif name == "Animator":
                with pytest.raises(weft.WeftError):
                    weft.Animator(path=path).add(1, 0.5)
            elif "draw" in name and path == "loop":
                with pytest.raises(weft.WeftError, match="has no ending"):
                    TAKERS[name](path)
            else:
                with pytest.raises(weft.WeftError, match="could not be written"):
                    TAKERS[name](path)
