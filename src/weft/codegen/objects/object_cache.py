"""Compiled object code -> files on disk that any process may read, write or damage without harm.

An entry is one file: a mark, the SHA-256 of the object code, the object code. It is written beside its place and
renamed onto it, so a reader sees all of it or nothing. An entry whose checksum is wrong counts as absent.
"""

import hashlib
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

MARK = b"weft object 2\n"
DIGEST_BYTES = 32
SUFFIX = ".weftobject"
LARGEST_CACHE = 256 * 1024 * 1024
# Counting the folder's bytes costs as much as many writes, so it is done once in so many writes.
WRITES_BETWEEN_PRUNES = 64

log = logging.getLogger("weft.codegen")


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
