"""Pieces of bytes -> a file that is there whole or not at all, whatever interrupts the writing.

A signal from the keyboard waits until the new file is in place. What a killed process left behind is swept later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from weft.api.programs.writing import NEW_FILE, is_stream, resolved_target, write_into
from weft.errors import CheckpointError
from weft.runtime.interrupts import interrupts_after
from weft.train.checkpoints.told import Told, nobody

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.part")
YOUNGEST_ORPHAN = 5.0  # seconds: a file younger than this may belong to a writer that has not locked it yet
WRITE_SIZE = 2**24  # a signal is noticed between two writes of so many bytes
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def write_durably(path: Path, pieces: Sequence[bytes | bytearray | memoryview], told: Told = nobody) -> None:
    """Write a file: temporary beside it, synced, renamed, its folder synced; through a link, and into a device."""
    path = resolved_target(path)
    if is_stream(path):
        write_into(path, pieces)
        return
    size = sum(len(piece) for piece in pieces)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with interrupts_after():
        try:
            check_room(path.parent, size)
            _write_new(temporary, pieces, lambda done: told(f"writing {path}", done, size))
            if path.exists():
                temporary.chmod(path.stat().st_mode & 0o777)
            temporary.replace(path)
            _sync_folder(path.parent)
        except OSError as error:
            raise _failure(path, error, size) from error
        finally:
            with contextlib.suppress(OSError):  # the folder may be none
                temporary.unlink()


def check_room(folder: Path, size: int) -> None:
    """Raise CheckpointError unless the disk of a folder has room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise disk_full(folder, size, free)


def disk_full(folder: Path, size: int, free: int) -> CheckpointError:
    """Say that a file does not fit."""
    return CheckpointError(
        f"disk full: the checkpoint needs {size:,} bytes, and the disk of {folder} has {free:,} left",
        why="nothing was changed: earlier checkpoints are as they were",
        fix="make room or save elsewhere; weft.Checkpoints(folder, keep=2) keeps only the newest files",
    )


def _failure(path: Path, error: OSError, size: int) -> CheckpointError:
    if error.errno in NO_ROOM:
        return disk_full(path.parent, size, shutil.disk_usage(path.parent).free)
    return CheckpointError(
        f"{path} could not be written",
        why=error.strerror or str(error),
        fix="what was at this path before is unchanged; choose another path, or make its folder writable",
    )


def _write_new(path: Path, pieces: Iterable[bytes | bytearray | memoryview], written: Callable[[int], None]) -> None:
    with os.fdopen(os.open(path, NEW_FILE, 0o666), "wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # tells a sweep that it has a writer; never waits, as the file is new
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[file.write(view[:WRITE_SIZE]) :]
                written(file.tell())
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the new name durable: until then, a crash of the machine may bring the old file back."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep_orphans(folder: Path) -> list[Path]:
    """Remove the temporary files that killed processes left in a folder, and name them."""
    found = [path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name) and _is_orphan(path)]
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _is_orphan(path: Path) -> bool:
    """Whether a temporary file has no writer: the lock of a process ends with it, however it ends."""
    try:
        with path.open("rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime < YOUNGEST_ORPHAN:
                return False
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:  # it has a writer, or went just now
        return False
