"""Pieces of bytes -> a file that is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from weft.errors import ExecutionError

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


def write_atomically(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file so that at every moment, also after a crash, the old file or the new one is there.

    A link stays, and what it leads to is written; a pipe or a device, such as /dev/stdout, is written into.
    """
    path = resolved_target(path)
    if is_stream(path):
        write_into(path, pieces)
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        _write_new(temporary, pieces)
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except OSError as error:
        raise ExecutionError(
            f"{path} could not be written",
            why=error.strerror or str(error),
            fix="what was at this path before is unchanged; make room, or choose another path",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the folder may be none
            temporary.unlink()
    _sync_folder(path)


def resolved_target(path: Path) -> Path:
    """Follow links, but none of those to open files, which lead to no name that could be written beside."""
    return path if is_stream(path) or not path.is_symlink() else Path(os.path.realpath(path))


def is_stream(path: Path) -> bool:
    """Tell whether something is there that is neither file nor folder: it cannot be replaced, only written into."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_into(path: Path, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write into a pipe or a device."""
    try:
        with path.open("wb", buffering=0) as file:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ExecutionError(f"{path} could not be written", why=error.strerror or str(error)) from error


def _write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    with os.fdopen(os.open(path, NEW_FILE, 0o666), "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make the new name durable: until the folder is synced, a crash of the machine may bring the old file back."""
    try:
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise ExecutionError(
            f"{path} is written, but may be lost if the machine stops now",
            why=f"its folder could not be synced: {error.strerror or error}",
        ) from error
