"""Pieces of bytes -> a checkpoint's file, written whole on a disk that has room, or an error that says what is wrong.

A signal from the keyboard waits until the new file is in place.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

from weft.errors import CheckpointError
from weft.files import NotDurableError, is_stream, resolved_target, sweep_orphans, write_whole
from weft.runtime.interrupts import interrupts_after
from weft.train.checkpoints.told import Told, nobody

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def write_durably(path: Path, pieces: Sequence[bytes | bytearray | memoryview], told: Told = nobody) -> None:
    """Write a file: temporary beside it, synced, renamed, its folder synced; through a link, and into a device."""
    size = sum(len(piece) for piece in pieces)
    try:
        path = resolved_target(path)
        if is_stream(path):  # who reads it may be slow: Ctrl-C does not wait for that
            write_whole(path, pieces)
            return
        with interrupts_after():
            sweep_orphans(path.parent)  # they take room
            check_room(path.parent, size)
            write_whole(path, pieces, lambda done: told(f"writing {path}", done, size))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _failure(path, error, size) from error


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
    if isinstance(error, NotDurableError):
        return CheckpointError(f"{path} is written, but may be lost if the machine stops now", why=str(error))
    if is_stream(path):
        return CheckpointError(f"{path} could not be written", why=error.strerror or str(error))
    if error.errno in NO_ROOM:
        return disk_full(path.parent, size, shutil.disk_usage(path.parent).free)
    return CheckpointError(
        f"{path} could not be written",
        why=error.strerror or str(error),
        fix="what was at this path before is unchanged; choose another path, or make its folder writable",
    )
