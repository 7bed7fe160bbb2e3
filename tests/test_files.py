"""Paths are checked, only regular files are read, and files are written whole or not at all, whatever interrupts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import files
from weft.console.report.running import _read
from weft.errors import ExecutionError, WeftError
from weft.files import (
    FILE,
    FOLDER,
    LISTED,
    missing_file,
    open_regular,
    sweep_orphans,
    what_is_there,
    write_atomically,
    write_whole,
)
from weft.train.checkpoints.converting import convert
from weft.train.checkpoints.examining import content_of, examine, files_of
from weft.train.checkpoints.tensor_file import write_durably
from weft.train.data import read_idx

NET = torch.nn.Linear(3, 2)
LINEAR = torch.nn.Linear(2, 2)
WRITERS = [write_atomically, write_durably]


def test_a_close_name_is_guessed_and_others_are_listed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert missing_file(Path("net.py"), [".py"]).why == "this folder has no .py file"
    for name in ("net.py", "net.pt"):
        Path(name).touch()
    assert str(missing_file(Path("nte.py"), [".py"])) == "there is no file nte.py\n  fix   did you mean net.py?"
    assert missing_file(Path("other.py"), [".py", ".pt"]).why == "this folder has net.pt, net.py"
    assert missing_file(Path("absent/net.py"), [".py"], "run").fact == "there is no run absent/net.py"
    assert missing_file(Path("absent/net.py"), [".py"]).why == "there is no folder absent"


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    for index in range(LISTED + 3):
        (tmp_path / f"{index}.py").touch()
    assert (
        missing_file(tmp_path / "network.py", [".py"]).why == f"{tmp_path} has 0.py, 1.py, 2.py, 3.py, 4.py and 3 more"
    )


def test_a_folder_is_no_file_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "net.py").mkdir()
    assert str(missing_file(tmp_path / "net.py", [".py"])).startswith(f"{tmp_path}/net.py is a folder")
    assert missing_file(tmp_path / "nte.py", [".py"]).why == f"{tmp_path} has no .py file"


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
GIVEN_TO = ("program.save", "draw", "a loaded program's draw", "timeline", "save", "trace_to", "Animator")


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
@pytest.mark.parametrize("name", GIVEN_TO)
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


@pytest.mark.parametrize("name", GIVEN_TO)
def test_a_slash_at_the_end_asks_for_a_folder(name: str) -> None:
    with pytest.raises(weft.UsageError, match=r"writes a file, and net\.svg is a folder"):
        TAKERS[name]("net.svg/")
    assert not Path("net.svg").exists()


@pytest.mark.parametrize("name", ["load", "load_program", "Checkpoints", "export"])
def test_an_empty_text_is_not_the_folder_where_the_process_runs(name: str) -> None:
    with pytest.raises(weft.UsageError, match="takes a path, not ''"):
        TAKERS[name]("")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", GIVEN_TO)
def test_a_pipe_that_nobody_reads_and_a_socket_are_written_by_nobody(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.files.PATIENCE", 0.02)
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


@contextmanager
def place(kind: str, folder: Path) -> Iterator[Path]:
    """Make something with a name that is no file."""
    path = folder / "x.safetensors"
    with socket.socket(socket.AF_UNIX) as made:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            made.bind(str(path))
        elif kind == "link to a pipe":
            os.mkfifo(folder / "behind")
            path.symlink_to("behind")
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "dangling link":
            path.symlink_to("nothing")
        elif kind == "folder":
            (path / "inner").mkdir(parents=True)
        else:
            path = Path(kind)
        yield path


KINDS = ["pipe", "socket", "link to a pipe", "loop", "dangling link", "folder", "/dev/null", "/dev/zero", "/dev/full"]
READERS: dict[str, Callable[[Path], Any]] = {
    "load": lambda path: weft.load(path, LINEAR),
    "load unverified": lambda path: weft.load(path, LINEAR, verify=False),
    "load_program": weft.load_program,
    "examine": examine,
    "content": content_of,
    "files": lambda path: files_of([path]),
    "convert": lambda path: convert(path, Path("out.safetensors")),
    "array": _read,
    "images": read_idx,
    "packed images": lambda path: read_idx(path.with_suffix(".gz") if path.is_fifo() else path),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_no_file_is_an_error_of_weft_in_every_reader(kind: str, tmp_path: Path) -> None:
    with place(kind, tmp_path) as path:
        for read in READERS.values():
            with pytest.raises(WeftError):
                read(path)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("pipe", "a pipe"), ("socket", "a socket"), ("/dev/null", "a device"), ("folder", FOLDER), ("loop", None)],
)
def test_what_is_there_is_said_in_words(kind: str, said: str | None, tmp_path: Path) -> None:
    with place(kind, tmp_path) as path:
        assert what_is_there(path) == said
    file = tmp_path / "file"
    file.touch()
    assert (what_is_there(file), what_is_there(tmp_path / "none"), what_is_there(tmp_path / ("x" * 300))) == (
        FILE,
        None,
        None,
    )


def test_a_pipe_that_takes_the_place_of_a_file_is_noticed_when_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    status = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda self: status)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="it is a pipe, not a regular file") as caught:
        open_regular(path)
    assert caught.value.errno == errno.EINVAL
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_pipe_in_a_folder_of_checkpoints_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = weft.Checkpoints(tmp_path)
    checkpoints.save(LINEAR, 1)
    os.mkfifo(tmp_path / "step-0000000002.safetensors")
    (tmp_path / "latest").unlink()
    os.mkfifo(tmp_path / "latest")
    assert weft.load(tmp_path)["step"] == 1


def test_arrays_are_read_from_the_file_that_was_looked_at(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    assert _read(tmp_path / "x.npy").tolist() == [0, 1, 2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("write", WRITERS)
def test_a_link_stays_and_what_it_leads_to_is_written(write: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    for content in (b"one", b"two"):
        write(tmp_path / "link", [content])
        assert (tmp_path / "folder" / "file").read_bytes() == content
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]


@pytest.mark.parametrize("write", WRITERS)
def test_a_pipe_is_written_into(write: Callable[..., Any], tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write(pipe, [b"one ", memoryview(b"two")])
    reader.join(20)
    assert found == [b"one two"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("write", WRITERS)
def test_a_device_without_room_is_named_and_stays(write: Callable[..., Any]) -> None:
    full = Path("/dev/full")
    if not full.is_char_device():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(ExecutionError, match="/dev/full could not be written"):
        write(full, [b"one"])
    assert full.is_char_device()


def test_what_is_written_is_synced_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        name = str(Path(f"/proc/self/fd/{handle}").readlink())
        did.append(f"sync {'file' if name.endswith('.part') else name}, {len(names(tmp_path))} names")
        sync(handle)

    def renamed(self: Path, target: Path) -> Path:
        did.append(f"rename to {Path(target).name}: {self.read_bytes()!r}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    for write in WRITERS:
        did.clear()
        write(tmp_path / "file", [b"one ", b"two"])
        count = 1 if write is write_atomically else 2
        assert did == [f"sync file, {count} names", "rename to file: b'one two'", f"sync {tmp_path}, 1 names"]


def test_what_was_written_into_a_folder_that_cannot_be_synced_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def refused(handle: int) -> None:
        if str(Path(f"/proc/self/fd/{handle}").readlink()) == str(tmp_path):
            raise OSError(errno.EIO, "Input/output error")
        sync(handle)

    monkeypatch.setattr(os, "fsync", refused)
    for write in WRITERS:
        with pytest.raises(ExecutionError, match="file is written, but may be lost if the machine stops now") as caught:
            write(tmp_path / "file", [b"new"])
        assert "Input/output error" in str(caught.value.why)
        assert (tmp_path / "file").read_bytes() == b"new"


def test_a_folder_that_cannot_be_opened_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refused(path: Any, flags: int, *mode: int, **where: Any) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *mode, **where)

    monkeypatch.setattr(os, "open", refused)
    for write in WRITERS:
        with pytest.raises(ExecutionError, match="could not be written\n  why   Permission denied"):
            write(tmp_path / "file", [b"new"])
    assert names(tmp_path) == []


def test_a_writer_holds_its_lock_until_its_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept, replace = [], Path.replace

    def renamed(self: Path, target: Path) -> Path:
        swept.append(sweep_orphans(tmp_path))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", renamed)
    for write in WRITERS:
        write(tmp_path / "file", [b"new"])
    assert swept == [[], []]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_that_was_swept_before_it_was_locked_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, []

    def first_swept(handle: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not swept:
            swept.append("begun")
            swept.extend(sweep_orphans(tmp_path))
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", first_swept)
    write_atomically(tmp_path / "file", [b"new"])
    assert len(swept) == 2
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_can_be_written_where_there_are_no_locks_and_nothing_is_swept_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = tmp_path / f".file.{'0' * 16}.part"
    orphan.touch()

    def none(handle: int, how: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    for write in WRITERS:
        write(tmp_path / "file", [b"new"])
    assert orphan.exists()


NAMES = ["net.weft", "x" * 255, "ü" * 127, "a\nb", " ", ".hidden", "-", "~net", os.fsdecode(b"\xff\xfe"), "a.part"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("write", WRITERS)
def test_every_name_that_a_file_can_have_is_written_and_its_orphans_swept(
    write: Callable[..., Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, **_: None)  # killed

        def killed(handle: int) -> None:
            raise MemoryError

        patch.setattr(os, "fsync", killed)
        with pytest.raises(MemoryError):
            write(tmp_path / name, [b"half"])
    assert [found.endswith(".part") for found in names(tmp_path)] == [True]
    write(tmp_path / name, [b"whole"])
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"whole"


OTHERS = [".x.0123456789abcdef.part~", "x.0123456789abcdef.part", ".x.0123456789ABCDEF.part", ".x.0123456789abcde.part"]


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_others_are_not_swept(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert sweep_orphans(tmp_path) == []
    assert (tmp_path / name).exists()


def test_links_and_pipes_with_the_name_of_an_orphan_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept", encoding="ascii")
    (tmp_path / f".x.{'1' * 16}.part").symlink_to("precious")
    (tmp_path / f".y.{'1' * 16}.part").mkdir()
    assert sweep_orphans(tmp_path) == []
    assert (tmp_path / "precious").read_text(encoding="ascii") == "kept"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("write", WRITERS)
def test_a_pipe_that_nobody_reads_is_not_waited_for_without_end(
    write: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.02)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ExecutionError, match="pipe could not be written\n  why   nobody reads this pipe"):
        write(tmp_path / "pipe", [b"one"])
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("write", WRITERS)
def test_what_can_be_written_neither_into_nor_over_stays_and_is_named(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"old")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        for name in ("folder", "loop", "socket", "file/below", "none/below", "x" * 256):
            with pytest.raises(ExecutionError, match="could not be written"):
                write(tmp_path / name, [b"new"])
        assert names(tmp_path) == ["file", "folder", "loop", "socket"]
    assert (tmp_path / "loop").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("write", WRITERS)
def test_a_link_that_leads_nowhere_gets_its_file(write: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write(tmp_path / "link", [b"new"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize("write", WRITERS)
def test_dev_null_takes_everything_and_stays(write: Callable[..., Any]) -> None:
    write(Path("/dev/null"), [b"one", memoryview(b"two"), b""])
    assert Path("/dev/null").is_char_device()


def test_pieces_of_numbers_are_written_as_their_bytes(tmp_path: Path) -> None:
    told: list[int] = []
    write_whole(tmp_path / "file", [memoryview(array("i", [1, 2])), b"x"], told.append)
    assert (tmp_path / "file").read_bytes() == array("i", [1, 2]).tobytes() + b"x"
    assert told == [8, 9]
