"""Files are written whole through links, and devices and pipes are written into, never replaced."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.api.programs.writing import write_atomically
from weft.errors import ExecutionError
from weft.train.checkpoints.durable_file import write_durably

WRITERS = [write_atomically, write_durably]


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
