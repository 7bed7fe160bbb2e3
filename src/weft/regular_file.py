"""Open a path to read it only where a file is: a pipe, a terminal or a device may be waited for without end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

FILE, FOLDER = "a file", "a folder"
KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes; anything else that has a name is an OSError that says what it is."""
    _check(path.stat().st_mode, path)  # before it is opened: to open some devices does something
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(handle).st_mode, path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def what_is_there(path: Path) -> str | None:
    """Say what has a name, behind its links: a file, a folder, a pipe; None where nothing is, or can be found."""
    try:
        return _kind(path.stat().st_mode)
    except OSError:
        return None


def _kind(mode: int) -> str:
    return KINDS.get(stat.S_IFMT(mode), "something unknown")


def _check(mode: int, path: Path) -> None:
    kind = _kind(mode)
    if kind == FOLDER:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != FILE:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
