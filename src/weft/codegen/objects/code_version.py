"""The source of what writes machine code -> a digest that differs where the code it writes may.

Machine code that is kept on disk under the description of what it computes is as old as the generator that wrote it:
this digest, a part of its name, lets a changed generator never meet it again.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from weft.codegen.objects.object_cache import ObjectCache
from weft.config import config

# All that code generation reads: its own files, the kernels it is given, and the types and processors they speak of.
SOURCES = ("codegen/**/*.py", "plan/**/*.py", "ir/**/*.py", "target.py")
DIGEST_FOLDER = "digests"
LARGEST_CACHE = 256 * 1024
# A file that has just been written may be written again without looking different: its time has ticks.
NEW_NANOSECONDS = 2_000_000_000

Look = tuple[str, int, int, int, int]  # a file's path, number, size, and when it and what the system says changed


def digest_of(folder: Path, patterns: Sequence[str] = SOURCES) -> str:
    """Digest the names and contents of files: by default those that decide what machine code is written."""
    found = hashlib.sha256()
    for pattern in patterns:
        for look in sorted(_looks(folder, pattern)):
            content, name = _content(look), look[0][len(str(folder)) + 1 :].replace(os.sep, "/")
            found.update(f"{name} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


def known_digest(folder: Path, patterns: Sequence[str] = SOURCES) -> str:
    """The same; from the disk cache where all files look as they did when it was kept, so that none is read."""
    place = config().cache_dir
    looks = sorted(look for pattern in patterns for look in _looks(folder, pattern))
    newest = max((max(look[3:]) for look in looks), default=0)
    if place is None or newest > time.time_ns() - NEW_NANOSECONDS:
        return digest_of(folder, patterns)
    entries = ObjectCache(place / DIGEST_FOLDER, LARGEST_CACHE)
    key = hashlib.sha256(repr((str(folder), patterns, looks)).encode()).hexdigest()
    found = entries.read(key)
    if found is None:
        found = f"{key} {digest_of(folder, patterns)}".encode()
        entries.write(key, found)
    name, _, digest = found.decode("ascii", "replace").partition(" ")
    # An entry that was moved to another's place is whole, and says whose it is.
    return digest if name == key else digest_of(folder, patterns)


@cache
def code_version() -> str:
    """Digest the files of this installation, as they are when it is first asked for."""
    return known_digest(Path(__file__).parents[2])


def _looks(folder: Path, pattern: str) -> Iterator[Look]:
    """Look at the files of a pattern: one of them, or all of the kind in a folder and those inside."""
    top, _, rest = pattern.partition("/**/*")
    if not rest:
        yield _look(str(folder / top), (folder / top).stat())
        return
    folders = [str(folder / top)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.endswith(rest):
                    yield _look(entry.path, entry.stat())


def _look(path: str, status: os.stat_result) -> Look:
    return path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _content(look: Look) -> bytes:
    """Read a file of known size: in a first call, which reads hundreds, in half the time of an object for each."""
    path, _, size, *_ = look
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        content = os.read(descriptor, size + 1)
    finally:
        os.close(descriptor)
    return content if len(content) == size else Path(path).read_bytes()  # changed since it was looked at
