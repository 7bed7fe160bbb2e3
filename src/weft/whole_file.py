"""Write a file that is there whole or not at all, whatever interrupts the writing.

The new file is written beside its place under a temporary name, synced, renamed, and its folder synced. A writer holds
a lock on its temporary file from before the first byte until it has its name, and the lock of a process ends with it,
however it ends: so whoever writes next into the folder can tell what a killed process left, and sweeps it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.errors import ExecutionError

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.part", re.DOTALL)
LONGEST_STEM = 100  # bytes of a file's name in that of its temporary file: no name becomes too long by it
PATIENCE, BETWEEN_TRIES = 5.0, 0.01  # seconds for who reads a pipe to open it
WRITE_SIZE = 2**24  # a signal is noticed between two writes of so many bytes
Pieces = Iterable[bytes | bytearray | memoryview]


class NotDurableError(OSError):
    """A file that has its new content and may lose it again if the machine stops now."""


def write_atomically(path: Path, pieces: Pieces) -> None:
    """Write a file so that at every moment, also after a crash, the old file or the new one is there.

    A link stays, and what it leads to is written; a pipe or a device, such as /dev/stdout, is written into.
    """
    try:
        write_whole(path, pieces)
    except BrokenPipeError:
        raise
    except NotDurableError as error:
        raise ExecutionError(f"{path} is written, but may be lost if the machine stops now", why=str(error)) from error
    except OSError as error:
        unchanged = "what was at this path before is unchanged; make room, or choose another path"
        raise ExecutionError(
            f"{path} could not be written",
            why=error.strerror or str(error),
            fix=None if is_stream(path) else unchanged,
        ) from error


def write_whole(path: Path, pieces: Pieces, written: Callable[[int], None] | None = None) -> None:
    """Write a file as `write_atomically` does; what goes wrong is an OSError. `written` is told the bytes so far."""
    path = resolved_target(path)
    if is_stream(path):
        _write_into(path, pieces)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # what cannot be synced is not begun
    try:
        sweep_orphans(path.parent)
        with _new_file(path) as (temporary, handle):
            _write_all(handle, pieces, written)
            if path.exists():
                os.fchmod(handle, path.stat().st_mode & 0o777)
            os.fsync(handle)
            temporary.replace(path)
        try:
            os.fsync(folder)
        except OSError as error:
            raise NotDurableError(f"its folder could not be synced: {error.strerror or error}") from error
    finally:
        os.close(folder)


def resolved_target(path: Path) -> Path:
    """Follow links, but none of those to open files, which lead to no name that could be written beside."""
    if is_stream(path) or not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def is_stream(path: Path) -> bool:
    """Tell whether something is there that is neither file nor folder: it cannot be replaced, only written into."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def sweep_orphans(folder: Path) -> list[Path]:
    """Remove the temporary files that killed processes left in a folder, and name them."""
    return [path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name) and _swept(path)]


def _swept(path: Path) -> bool:
    """Remove a temporary file unless it has a writer, who holds its lock."""
    try:
        # For writing, as locks over a network are only given so.
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it has its name by now, or is another user's
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


@contextmanager
def _new_file(path: Path) -> Iterator[tuple[Path, int]]:
    """Give a locked temporary file beside a path, which is gone at the end unless it was renamed."""
    stem = os.fsencode(path.name)[:LONGEST_STEM].decode("utf-8", "ignore")
    while True:
        temporary = path.with_name(f".{stem}.{secrets.token_hex(8)}.part")
        handle = os.open(temporary, NEW_FILE, 0o666)
        try:
            # Where there are no locks, nobody sweeps. On the other side is a sweep that found the file before it was
            # locked, which waits for nothing; the file is gone then.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:
                yield temporary, handle
                return
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
            os.close(handle)


def _write_all(handle: int, pieces: Pieces, written: Callable[[int], None] | None = None) -> None:
    done = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view:
            length = os.write(handle, view[:WRITE_SIZE])
            view = view[length:]
            done += length
            if written is not None:
                written(done)


def _write_into(path: Path, pieces: Pieces) -> None:
    """Write into a pipe or a device."""
    handle = _opened_stream(path)
    try:
        os.set_blocking(handle, True)
        _write_all(handle, pieces)
    finally:
        os.close(handle)


def _opened_stream(path: Path) -> int:
    """Open a pipe or a device to write; to open a pipe that nobody reads would wait without end."""
    limit = time.monotonic() + PATIENCE
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if not path.is_fifo():
                raise OSError(errno.ENXIO, "it is no pipe or device that can be written", str(path)) from error
            if time.monotonic() >= limit:
                raise OSError(errno.ENXIO, f"nobody reads this pipe, for {PATIENCE:g} s", str(path)) from error
            time.sleep(BETWEEN_TRIES)
