"""Only files are read: what could be waited for without end is told, at once."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.errors import WeftError
from weft.regular_file import FILE, FOLDER, open_regular, what_is_there
from weft.report.running import _read
from weft.train.checkpoints.converting import convert
from weft.train.checkpoints.examining import content_of, examine, files_of
from weft.train.datasets.idx_file import read_idx

NET = torch.nn.Linear(2, 2)


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
    "load": lambda path: weft.load(path, NET),
    "load unverified": lambda path: weft.load(path, NET, verify=False),
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
    checkpoints.save(NET, 1)
    os.mkfifo(tmp_path / "step-0000000002.safetensors")
    (tmp_path / "latest").unlink()
    os.mkfifo(tmp_path / "latest")
    assert weft.load(tmp_path)["step"] == 1


def test_arrays_are_read_from_the_file_that_was_looked_at(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    assert _read(tmp_path / "x.npy").tolist() == [0, 1, 2]
