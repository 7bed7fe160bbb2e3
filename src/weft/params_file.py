"""Read and write arrays as MXNet keeps them in files (`.params`): sizes are checked before memory is asked for.

A file is a list: a magic number, the arrays, their names. An array is a magic number (or, before version 0.9, none),
its sizes, its device, its element type and its elements; all numbers are little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.errors import CheckpointError

PARAMS_ENDING = ".params"
LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA  # sizes of 64 bits; a kind of storage; sizes as NumPy has them
MOST_DIMENSIONS = 32
MOST_ELEMENTS = 2**58
SPARSE = {1: "row_sparse", 2: "csr"}
# In the order of the numbers by which files name them.
TYPE_NAMES = (
    "float32",
    "float64",
    "float16",
    "uint8",
    "int32",
    "int8",
    "int64",
    "bool",
    None,
    None,
    None,
    None,
    "bfloat16",
)
TYPE_NUMBERS = {getattr(torch, name): number for number, name in enumerate(TYPE_NAMES) if name is not None}
TYPES = {number: dtype for dtype, number in TYPE_NUMBERS.items()}


class SparseArrayError(CheckpointError):
    """A file that is sound and holds an array whose zeros are left out, which Weft does not read."""


class _Reader:
    """Bytes that are read from the front, never past their end."""

    def __init__(self, content: bytes | memoryview, name: str) -> None:
        self.content = memoryview(content)
        self.place = 0
        self.name = name

    def wrong(self, what: str, kind: type[CheckpointError] = CheckpointError) -> CheckpointError:
        """The error that says what is wrong, and where."""
        where = f"{what} (at byte {self.place} of {len(self.content)})"
        return kind(f"{self.name} cannot be loaded: {where}", fix="load another file")

    def take(self, count: int, what: str) -> memoryview:
        """So many bytes."""
        if count > len(self.content) - self.place:
            raise self.wrong(f"{what} should take {count} bytes, but only {len(self.content) - self.place} follow")
        found = self.content[self.place : self.place + count]
        self.place += count
        return found

    def number(self, form: str, what: str) -> int:
        """One number."""
        (found,) = struct.unpack("<" + form, self.take(struct.calcsize(form), what))
        return int(found)

    def count(self, what: str, at_least: int) -> int:
        """A number of things that take at least so many bytes each."""
        found = self.number("Q", what)
        if found * at_least > len(self.content) - self.place:
            raise self.wrong(f"it says that {found} {what} follow, for which it is too short")
        return found


def _sizes(reader: _Reader, dims: int, form: str) -> tuple[int, ...]:
    if not 0 <= dims <= MOST_DIMENSIONS:
        raise reader.wrong(f"an array of {dims} dimensions")
    sizes = tuple(reader.number(form, "a size") for _ in range(dims))
    # Also where one size is 0: torch has strides for the others.
    if any(size < 0 for size in sizes) or math.prod(max(size, 1) for size in sizes) > MOST_ELEMENTS:
        raise reader.wrong(f"an array of sizes {sizes}")
    return sizes


def _array(reader: _Reader) -> Tensor:
    magic = reader.number("I", "an array")
    if magic in (V2, V3):
        storage = reader.number("i", "a kind of storage")
        if storage in SPARSE:
            raise reader.wrong(f"an array with storage {SPARSE[storage]}, which Weft does not have", SparseArrayError)
        if storage not in (0, -1):
            raise reader.wrong(f"storage of the unknown kind {storage}")
        sizes = _sizes(reader, reader.number("i", "the number of dimensions"), "q")
        if magic == V3 and storage == -1:
            return torch.zeros(0)
    elif magic == V1:
        sizes = _sizes(reader, reader.number("I", "the number of dimensions"), "q")
    else:
        sizes = _sizes(reader, magic, "I")  # the oldest form: the first number is that of the dimensions
    if not sizes and magic != V3:
        return torch.zeros(0)
    reader.number("i", "a kind of device")
    reader.number("i", "the number of a device")
    number = reader.number("i", "an element type")
    dtype = TYPES.get(number)
    if dtype is None:
        raise reader.wrong(f"elements of the unknown type {number}")
    content = reader.take(math.prod(sizes) * dtype.itemsize, f"an array of sizes {sizes}")
    if not len(content):
        return torch.zeros(sizes, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(sizes)


def begins_as_params(content: bytes) -> bool:
    """Tell whether bytes begin as such a file does: with its magic number, and eight zeros."""
    return content[:16] == struct.pack("<QQ", LIST_MAGIC, 0)


def read_arrays(content: bytes | memoryview, name: str) -> tuple[list[Tensor], list[str]]:
    """The arrays of a file, and their names, of which there may be none."""
    reader = _Reader(content, name)
    if len(content) < 8 or reader.number("Q", "the head") != LIST_MAGIC:
        raise reader.wrong("Check failed: header == kMXAPINDArrayListMagic: it does not begin as such a file does")
    reader.number("Q", "the head")
    arrays = [_array(reader) for _ in range(reader.count("arrays", 4))]
    names = []
    for _ in range(reader.count("names", 8)):
        length = reader.count("bytes of a name", 1)
        try:
            names.append(bytes(reader.take(length, "a name")).decode())
        except UnicodeDecodeError as error:
            raise reader.wrong("a name that is no text") from error
    if names and len(names) != len(arrays):
        raise reader.wrong(f"{len(arrays)} arrays have {len(names)} names")
    if reader.place != len(reader.content):
        raise reader.wrong("something follows the last name")
    return arrays, names


def written_arrays(arrays: Sequence[Tensor], names: Sequence[str]) -> bytes:
    """The content of a file with these arrays."""
    parts = [struct.pack("<QQQ", LIST_MAGIC, 0, len(arrays))]
    for array in arrays:
        scalar = array.dim() == 0
        parts.append(struct.pack("<Iii", V3 if scalar else V2, 0, array.dim()))
        parts.append(struct.pack(f"<{array.dim()}q", *array.shape))
        parts.append(struct.pack("<iii", 1, 0, TYPE_NUMBERS[array.dtype]))
        content = array.detach().cpu().contiguous()
        parts.append(content.reshape(-1).view(torch.uint8).numpy().tobytes() if content.numel() else b"")
    parts.append(struct.pack("<Q", len(names)))
    for name in names:
        encoded = name.encode()
        parts += [struct.pack("<Q", len(encoded)), encoded]
    return b"".join(parts)
