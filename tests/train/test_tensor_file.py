"""Files are there whole or not at all: disks that are full, Ctrl-C, kills."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.train.killing import kill_many

from weft.errors import CheckpointError
from weft.files import sweep_orphans
from weft.train.checkpoints.tensor_file import write_durably


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, [b"one"])
    path.chmod(0o640)
    write_durably(path, [b"two ", memoryview(b"three")])
    assert path.read_bytes() == b"two three"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_without_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(100, 98, 2))
    with pytest.raises(CheckpointError, match=r"disk full: the checkpoint needs 3 bytes, .* has 2 left"):
        write_durably(tmp_path / "file", [b"abc"])
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "file"
    write_durably(path, [b"old"])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="disk full"):
        write_durably(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be written"):
        write_durably(tmp_path / "none" / "file", [b"x"])


def test_ctrl_c_waits_for_the_rename(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "file"
    before = signal.getsignal(signal.SIGINT)
    sync = os.fsync

    def interrupted(descriptor: int) -> None:
        signal.raise_signal(signal.SIGINT)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_durably(path, [b"new"])
    assert path.read_bytes() == b"new"
    assert signal.getsignal(signal.SIGINT) is before


def test_orphans_are_swept_and_files_that_are_being_written_are_not(tmp_path: Path, monkeypatch: Any) -> None:
    orphan, written = (tmp_path / f".step-1.{digit * 16}.part" for digit in "ab")
    other = tmp_path / ".other.part"
    for path in (orphan, written, other):
        path.touch()
    with written.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sweep_orphans(tmp_path) == [orphan]
    assert set(tmp_path.iterdir()) == {written, other}


@pytest.mark.slow
def test_killed_at_any_moment_the_last_file_is_good(tmp_path: Path, monkeypatch: Any) -> None:
    kill_many(tmp_path, 20, seed=1)
