"""Read and write what users name as paths: paths checked, regular files only, new files whole or not at all.

The new file is written beside its place under a temporary name, synced, renamed, and its folder synced. A writer holds
a lock on its temporary file from before the first byte until it has its name, and the lock of a process ends with it,
however it ends: so whoever writes next into the folder can tell what a killed process left, and sweeps it.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from weft.errors import ExecutionError, UsageError

FILE, FOLDER = "a file", "a folder"
KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
LISTED = 5
LONGEST_NAME = 255  # bytes
SHOWN = 60  # letters of a path in an error that says that it is too long
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.part", re.DOTALL)
LONGEST_STEM = 100  # bytes of a file's name in that of its temporary file: no name becomes too long by it
PATIENCE, BETWEEN_TRIES = 5.0, 0.01  # seconds for who reads a pipe to open it
WRITE_SIZE = 2**24  # a signal is noticed between two writes of so many bytes
Pieces = Iterable[bytes | bytearray | memoryview]


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


def missing_file(path: Path, endings: Sequence[str], kind: str = "file") -> UsageError:
    """Make the error: the file that was meant, if one has such a name, else which of its kind are there."""
    there = what_is_there(path)
    if there == FOLDER:
        return UsageError(f"{path} is a folder", why="a file is asked for", fix="name a file in it")
    if there not in (None, FILE):
        return UsageError(f"{path} is {there}", why="a file is asked for", fix="write what it gives to a file first")
    why, fix = what_is_near(path, endings)
    return UsageError(f"there is no {kind} {path}", why=why, fix=fix)


def what_is_near(path: Path, endings: Sequence[str]) -> tuple[str | None, str | None]:
    """Say, for an error, why there is no such file or which one was meant: one of the two."""
    folder = path.parent
    if what_is_there(folder) != FOLDER:
        return f"there is no folder {folder}", None
    try:
        near = sorted(each.name for each in folder.iterdir() if each.suffix in endings and what_is_there(each) == FILE)
    except OSError as error:
        return f"the folder {folder} cannot be read: {error.strerror}", None
    stems = {Path(name).stem: name for name in near}  # the same ending would make every name like every other
    close = difflib.get_close_matches(path.stem, stems, n=1)
    if close:
        return None, f"did you mean {folder / stems[close[0]]}?"
    place = "this folder" if folder == Path() else str(folder)
    kinds = " or ".join(endings)
    if not near:
        return f"{place} has no {kinds} file", None
    more = f" and {len(near) - LISTED} more" if len(near) > LISTED else ""
    return f"{place} has {', '.join(near[:LISTED])}{more}", None


def given_path(given: Any, function: str, call: str) -> Path:
    """Make a path of what `function` is given; `call` is how it is written."""
    try:
        path = Path(given)
    except TypeError as error:
        raise UsageError(
            f"{function} takes a path, not {type(given).__name__}", why="a path is a str or a pathlib.Path", fix=call
        ) from error
    if "\0" in str(path):
        raise UsageError(f"{function} takes a path, not {given!r}", why="no path has a zero character in it", fix=call)
    if not os.fspath(given):
        raise UsageError(f"{function} takes a path, not {given!r}", why="an empty text names nothing", fix=call)
    try:
        _check_names(path, function)
    except UnicodeEncodeError as error:
        raise UsageError(f"{function} takes a path, not {given!r}", why=f"it is no text: {error}", fix=call) from error
    return path


def _check_names(path: Path, function: str) -> None:
    """Refuse what no file can be called, and the shell's name of the home folder, which a program would create."""
    longest = max(path.parts, key=lambda part: len(os.fsencode(part)), default="")
    too_long = len(os.fsencode(longest)) > LONGEST_NAME
    if not too_long:
        try:
            path.lstat()
        except OSError as error:
            too_long = error.errno == errno.ENAMETOOLONG
    if too_long:
        length = f"it has a name of {len(os.fsencode(longest)):,} bytes, and {len(os.fsencode(path)):,} bytes in all"
        raise UsageError(
            f"{function}: the path {str(path)[:SHOWN]}... is too long", why=length, fix="give it a shorter name"
        )
    head = path.parts[0] if path.parts else ""
    if head.startswith("~") and (len(path.parts) > 1 or head == "~") and not os.path.lexists(head):
        raise UsageError(
            f"{function}: there is no folder {head}",
            why="only a shell reads it as the home folder",
            fix=f"pathlib.Path({str(path)!r}).expanduser()",
        )


def given_file(given: Any, function: str, call: str, endings: Sequence[str] = ()) -> Path:
    """Make the path of a file that will be written; with `endings`, only what is written to files that end so."""
    as_folder = isinstance(given, str) and (not given or given.endswith("/"))
    path = Path() if given == "" else given_path(given, function, call)
    if as_folder or not path.name or what_is_there(path) == FOLDER:
        raise UsageError(f"{function} writes a file, and {path} is a folder", fix=f"name a file in it: {call}")
    # A pipe or a device, such as /dev/stdout, has no ending.
    if endings and what_is_there(path) in (None, FILE) and path.suffix.lower() not in endings:
        listed = " or ".join(endings)
        ending = f"ends with {path.suffix}" if path.suffix else "has no ending"
        raise UsageError(f"{path} {ending}", why=f"{function} writes {listed}", fix=call)
    return path


def check_writable(path: Path, asked: str) -> None:
    """Raise where a file cannot be written, before the long work whose end writes it; `asked` is what asked for it."""
    folder = path.parent
    above, there = what_is_there(folder), what_is_there(path)
    if above is None:
        raise UsageError(f"{asked}: there is no folder {folder}", fix="make it first, or choose another path")
    if above != FOLDER:
        raise UsageError(f"{asked}: {folder} is no folder", fix="choose another path")
    if there == FOLDER:
        raise UsageError(f"{asked}: this is a folder", why="a file will be written", fix="name a file in it")
    if there not in (None, FILE):
        return  # a pipe or a device is written into
    # Most files are written beside their place and then moved there, so the folder decides.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{asked}: the folder {folder} may not be written", fix="choose another path")


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
