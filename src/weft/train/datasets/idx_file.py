"""An IDX file, packed or not -> the array in it: the format of MNIST and its relatives."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from weft.errors import ExecutionError
from weft.files import open_regular

# The third byte of a file -> the type of its elements, big-endian.
ELEMENTS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
LARGEST = 2**33  # bytes: a packed file may promise any size


def read_idx(path: Path) -> torch.Tensor:
    """Read a file; its sizes must be those of the bytes that are there."""
    try:
        with open_regular(path) as plain, gzip.open(plain) if path.suffix == ".gz" else plain as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in ELEMENTS:
                raise ExecutionError(f"{path} is not an IDX file", why=f"it begins with {start!r}")
            elements = np.dtype(ELEMENTS[start[2]])
            sizes = struct.unpack(f">{start[3]}I", file.read(4 * start[3]))
            length = math.prod(sizes) * elements.itemsize
            content = file.read(min(length, LARGEST) + 1)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise ExecutionError(f"{path} could not be read", why=str(error) or type(error).__name__) from error
    if len(content) != length:
        raise ExecutionError(f"{path} says that it has {length} bytes of elements, and has {len(content)} or more")
    array = np.frombuffer(content, dtype=elements).reshape(sizes)
    return torch.from_numpy(array.astype(elements.newbyteorder("=")))
