"""Keep what was compiled on disk, in files that any process may read, write or damage without harm.

An entry is one file: a mark, the SHA-256 of the object code, the object code. It is written beside its place and
renamed onto it, so a reader sees all of it or nothing. An entry whose checksum is wrong counts as absent.

What is kept under a description of what it computes is as old as the generator that wrote it: `code_version`, a digest
of the generator's sources, is a part of its name, so that a changed generator never meets it again.
"""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft.config import config

MARK = b"weft object 2\n"
DIGEST_BYTES = 32
SUFFIX = ".weftobject"
LARGEST_CACHE = 256 * 1024 * 1024
# Counting the folder's bytes costs as much as many writes, so it is done once in so many writes.
WRITES_BETWEEN_PRUNES = 64

# All that code generation reads: its own files, the kernels it is given, and the types and processors they speak of.
SOURCES = ("codegen/**/*.py", "plan/**/*.py", "ir/**/*.py", "target.py")
DIGEST_FOLDER = "digests"
LARGEST_DIGESTS = 256 * 1024
# A file that has just been written may be written again without looking different: its time has ticks.
NEW_NANOSECONDS = 2_000_000_000

log = logging.getLogger("weft.codegen")
FileStamp = tuple[str, int, int, int, int]  # a file's path, number, size, and when it and what the system says changed


@dataclass
class ObjectCache:
    """The object code kept in one folder; the least recently used entries go when it is over its size."""

    folder: Path
    largest: int = LARGEST_CACHE
    writes: int = 0

    def path(self, key: str) -> Path:
        """Give the file of a key."""
        return self.folder / f"{key}{SUFFIX}"

    def read(self, key: str) -> bytes | None:
        """Give the object code of a key; None where there is none, or what is there is damaged."""
        path = self.path(key)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        body = entry[len(MARK) + DIGEST_BYTES :]
        if entry != MARK + hashlib.sha256(body).digest() + body:
            log.info("cache entry %s is damaged and will be built again", path.name)
            return None
        self._touch(path)
        return body

    def write(self, key: str, body: bytes) -> None:
        """Keep object code under a key; a folder that cannot be written is reported and costs only time."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".partial")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(MARK + hashlib.sha256(body).digest() + body)
                Path(temporary).replace(self.path(key))
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            log.warning("compiled code cannot be kept in %s: %s", self.folder, error)
            return
        if self.writes % WRITES_BETWEEN_PRUNES == 0:
            self.prune()
        self.writes += 1

    def prune(self) -> None:
        """Remove the least recently used entries until the rest fits in the cache's size."""
        entries = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # another process pruned it first
            entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.largest:
                break
            path.unlink(missing_ok=True)
            total -= size

    def _touch(self, path: Path) -> None:
        try:
            os.utime(path)
        except OSError:
            # Another user's cache, or one just pruned: the entry was read, only its age stays as it was.
            log.debug("cache entry %s keeps its age", path.name)


def digest_of(folder: Path, patterns: Sequence[str] = SOURCES) -> str:
    """Digest the names and contents of files: by default those that decide what machine code is written."""
    found = hashlib.sha256()
    for pattern in patterns:
        for stamp in sorted(_stamps(folder, pattern)):
            content, name = _content(stamp), stamp[0][len(str(folder)) + 1 :].replace(os.sep, "/")
            found.update(f"{name} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


def known_digest(folder: Path, patterns: Sequence[str] = SOURCES) -> str:
    """The same; from the disk cache where all files look as they did when it was kept, so that none is read."""
    place = config().cache_dir
    stamps = sorted(stamp for pattern in patterns for stamp in _stamps(folder, pattern))
    newest = max((max(stamp[3:]) for stamp in stamps), default=0)
    if place is None or newest > time.time_ns() - NEW_NANOSECONDS:
        return digest_of(folder, patterns)
    entries = ObjectCache(place / DIGEST_FOLDER, LARGEST_DIGESTS)
    key = hashlib.sha256(repr((str(folder), patterns, stamps)).encode()).hexdigest()
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


def _stamps(folder: Path, pattern: str) -> Iterator[FileStamp]:
    """FileStamp at the files of a pattern: one of them, or all of the kind in a folder and those inside."""
    top, _, rest = pattern.partition("/**/*")
    if not rest:
        yield _stamp(str(folder / top), (folder / top).stat())
        return
    folders = [str(folder / top)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.endswith(rest):
                    yield _stamp(entry.path, entry.stat())


def _stamp(path: str, status: os.stat_result) -> FileStamp:
    return path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _content(stamp: FileStamp) -> bytes:
    """Read a file of known size: in a first call, which reads hundreds, in half the time of an object for each."""
    path, _, size, *_ = stamp
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        content = os.read(descriptor, size + 1)
    finally:
        os.close(descriptor)
    return content if len(content) == size else Path(path).read_bytes()  # changed since it was looked at
