"""Keep records one after the other in a file, with images and their labels in them: `mx.recordio`.

A record begins with a magic number and its length, of which the upper three bits say whether it is a part: where a
record's bytes have the magic number at a multiple of four, it is left out, and the record cut there.
"""

from __future__ import annotations

import os
import struct
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np

from weft.mx.base.errors import MXNetError
from weft.mx.operators.codecs import decoded, encoded

MAGIC = struct.pack("<I", 0xCED7230A)
MOST_LENGTH = 1 << 29
WHOLE, FIRST, MIDDLE, LAST = range(4)
HEADER = "IfQQ"
SIZE_OF_HEADER = struct.calcsize(HEADER)
IRHeader = namedtuple("HEADER", ["flag", "label", "id", "id2"])  # type: ignore[name-match]  # noqa: PYI024  # MXNet's


def _parts(data: bytes) -> list[bytes]:
    """A record cut where it has the magic number at a multiple of four."""
    parts, begin, place = [], 0, data.find(MAGIC)
    while place >= 0:
        if place % 4 == 0:
            parts.append(data[begin:place])
            begin = place + 4
        place = data.find(MAGIC, place + (4 if place % 4 == 0 else 1))
    return [*parts, data[begin:]]


class MXRecordIO:
    """Records that are read, or written, one after the other."""

    def __init__(self, uri: str | os.PathLike[str], flag: str) -> None:
        self.uri, self.flag = os.fspath(uri), flag
        self.is_open = False
        self.open()

    def open(self) -> None:
        """Open the file; one that is written begins empty."""
        if self.flag not in ("r", "w"):
            raise ValueError(f"Invalid flag {self.flag}")
        self.writable = self.flag == "w"
        try:
            self._file: Any = open(self.uri, "wb" if self.writable else "rb")  # noqa: PTH123, SIM115  # closed by `close`
        except OSError as error:
            raise MXNetError(f"Open {self.uri}: {error}") from error
        self.pid: int | None = os.getpid()
        self.is_open = True

    def close(self) -> None:
        """Close the file."""
        if self.is_open:
            self._file.close()
            self.is_open, self.pid = False, None

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        was_open = self.is_open
        self.close()
        state = {name: value for name, value in self.__dict__.items() if name != "_file"}
        state["is_open"] = was_open
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        was_open, self.is_open = self.is_open, False
        if was_open:
            self.open()

    def _check_pid(self, *, may_reset: bool) -> None:
        if self.pid != os.getpid():  # a child that came by a fork shares the place in the file
            if not may_reset:
                raise RuntimeError("Forbidden operation in multiple processes")
            self.reset()

    def reset(self) -> None:
        """Begin at the first record; one that is written becomes empty."""
        self.close()
        self.open()

    def write(self, buf: bytes | str) -> None:
        """Write a record."""
        if not self.writable:
            raise AssertionError(f"{self.uri} is open for reading")
        self._check_pid(may_reset=False)
        data = buf.encode() if isinstance(buf, str) else bytes(buf)
        parts = _parts(data)
        for place, part in enumerate(parts):
            if len(part) >= MOST_LENGTH:
                raise MXNetError(f"Check failed: a record of {len(part)} bytes is too long: {MOST_LENGTH} is the most")
            kind = WHOLE if len(parts) == 1 else FIRST if not place else LAST if place == len(parts) - 1 else MIDDLE
            self._file.write(MAGIC + struct.pack("<I", kind << 29 | len(part)) + part + bytes(-len(part) % 4))

    def _part(self) -> tuple[int, bytes] | None:
        head = self._file.read(8)
        if not head:
            return None
        if len(head) < 8 or head[:4] != MAGIC:
            raise MXNetError(f"Check failed: {self.uri} is no file of records, or damaged: no magic number")
        word = struct.unpack("<I", head[4:])[0]
        length = word & (MOST_LENGTH - 1)
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        if length > left:  # before memory is asked for
            raise MXNetError(f"Check failed: {self.uri} is damaged: a record of {length} bytes, and {left} are left")
        data = self._file.read(length)
        self._file.read(-length % 4)
        return word >> 29, data

    def read(self) -> bytes | None:
        """The next record; None after the last."""
        if self.writable:
            raise AssertionError(f"{self.uri} is open for writing")
        self._check_pid(may_reset=True)
        found = self._part()
        if found is None or found[0] == WHOLE:
            return found and found[1]
        kind, parts = found[0], [found[1]]
        if kind != FIRST:
            raise MXNetError(f"Check failed: {self.uri} is damaged: a record begins with its middle")
        while kind != LAST:
            found = self._part()
            if found is None or found[0] not in (MIDDLE, LAST):
                raise MXNetError(f"Check failed: {self.uri} is damaged: a record has no end")
            kind = found[0]
            parts.append(found[1])
        return MAGIC.join(parts)


class MXIndexedRecordIO(MXRecordIO):
    """Records with keys, which a second file keeps: `key<tab>place` a line."""

    def __init__(
        self, idx_path: str | os.PathLike[str], uri: str | os.PathLike[str], flag: str, key_type: Any = int
    ) -> None:
        self.idx_path, self.key_type = os.fspath(idx_path), key_type
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        self._index: Any = None
        super().__init__(uri, flag)

    def open(self) -> None:
        """Open both files."""
        super().open()
        self.idx, self.keys = {}, []
        if self.writable:
            self._index = open(self.idx_path, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # closed by `close`
            return
        for line in Path(self.idx_path).read_text(encoding="utf-8").splitlines():
            key, _, place = line.strip().partition("\t")
            self.idx[self.key_type(key)] = int(place)
            self.keys.append(self.key_type(key))

    def close(self) -> None:
        """Close both files."""
        super().close()
        if self._index is not None:
            self._index.close()
            self._index = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_index": None}

    def seek(self, idx: Any) -> None:
        """Go to the record of a key."""
        if self.writable:
            raise AssertionError(f"{self.uri} is open for writing")
        self._check_pid(may_reset=True)
        self._file.seek(self.idx[idx])

    def tell(self) -> int:
        """Where the next record is written."""
        if not self.writable:
            raise AssertionError(f"{self.uri} is open for reading")
        place: int = self._file.tell()
        return place

    def read_idx(self, idx: Any) -> bytes | None:
        """The record of a key."""
        self.seek(idx)
        return self.read()

    def write_idx(self, idx: Any, buf: bytes | str) -> None:
        """Write a record with a key."""
        key, place = self.key_type(idx), self.tell()
        self.write(buf)
        self._index.write(f"{key}\t{place}\n")
        self.idx[key] = place
        self.keys.append(key)


def pack(header: Any, s: bytes) -> bytes:
    """A header with one label, or several, before bytes."""
    made = IRHeader(*header)
    if isinstance(made.label, (int, float, np.number)):
        made = made._replace(flag=0)
    else:
        labels = np.asarray(made.label, dtype=np.float32)
        made, s = made._replace(flag=labels.size, label=0), labels.tobytes() + s
    return struct.pack(HEADER, *made) + s


def unpack(s: bytes) -> tuple[Any, bytes]:
    """The header of a record, and the bytes behind it."""
    if len(s) < SIZE_OF_HEADER:
        raise MXNetError(f"a record of {len(s)} bytes has no header, which has {SIZE_OF_HEADER}")
    header, s = IRHeader(*struct.unpack(HEADER, s[:SIZE_OF_HEADER])), s[SIZE_OF_HEADER:]
    if header.flag > 0:
        if header.flag * 4 > len(s):
            raise MXNetError(f"a record says that it has {header.flag} labels, and has {len(s)} bytes")
        header = header._replace(label=np.frombuffer(s, np.float32, header.flag))
        s = s[header.flag * 4 :]
    return header, s


def pack_img(header: Any, img: Any, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """A header before an image, whose channels are blue, green and red, as a file."""
    return pack(header, encoded(img, img_fmt, quality))


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[Any, Any]:
    """The header of a record, and the pixels of its image, blue first."""
    header, data = unpack(s)
    pixels = decoded(data, 0 if iscolor == 0 else 1, to_rgb=False).numpy()
    return header, pixels[..., 0] if iscolor == 0 else pixels
