"""Download the files of a data set, with checksums, and read the arrays in them."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import math
import struct
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from weft.errors import ExecutionError
from weft.files import open_regular, write_atomically

# The third byte of a file -> the type of its elements, big-endian.
ELEMENTS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
LARGEST_ARRAY = 2**33  # bytes: a packed file may promise any size
TIMEOUT = 30  # seconds without a byte
PIECE = 2**18
LARGEST_FILE = 2**30


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
            content = file.read(min(length, LARGEST_ARRAY) + 1)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise ExecutionError(f"{path} could not be read", why=str(error) or type(error).__name__) from error
    if len(content) != length:
        raise ExecutionError(f"{path} says that it has {length} bytes of elements, and has {len(content)} or more")
    array = np.frombuffer(content, dtype=elements).reshape(sizes)
    return torch.from_numpy(array.astype(elements.newbyteorder("=")))


def download(address: str, path: Path, md5: str) -> Path:
    """Give the file, fetched unless it is there; a file with another checksum is an error and is not kept."""
    with contextlib.suppress(FileNotFoundError), open_regular(path) as file:
        if checksum(file.read()) == md5:
            return path
    try:
        content = b"".join(_pieces(address, path.name))
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ExecutionError(
            f"{path.name} could not be downloaded",
            why=f"{address}: {reason}",
            fix=f"where there is no network, put the file at {path}, or train on made-up data:"
            " --synthetic (synthetic=True)",
        ) from error
    if checksum(content) != md5:
        raise ExecutionError(
            f"{path.name} came with another checksum than it must have",
            why=f"{address} gave {len(content):,} bytes with the MD5 {checksum(content)}; expected {md5}",
            fix="try again; if it stays so, somebody between you and the server answers in its place",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [content])
    return path


def checksum(content: bytes) -> str:
    """Give the MD5 by which the data set's own page names its files: against damage, not against malice."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _pieces(address: str, name: str) -> Iterator[bytes]:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as response:
        expected = int(response.headers.get("Content-Length") or 0)
        come = 0
        while piece := response.read(PIECE):
            come += len(piece)
            if come > LARGEST_FILE:
                raise OSError(f"more than {LARGEST_FILE:,} bytes came")
            if sys.stderr.isatty():
                share = f"{100 * come / expected:3.0f} % of " if expected else ""
                sys.stderr.write(f"\r{name}: {share}{max(come, expected):,} bytes")
            yield piece
    if sys.stderr.isatty():
        sys.stderr.write("\n")
