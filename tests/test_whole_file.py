"""Files are written whole through links, and devices and pipes are written into, never replaced."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft import whole_file
from weft.errors import ExecutionError
from weft.train.checkpoints.durable_file import write_durably
from weft.whole_file import sweep_orphans, write_atomically, write_whole

WRITERS = [write_atomically, write_durably]


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
    monkeypatch.setattr(whole_file, "PATIENCE", 0.02)
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
