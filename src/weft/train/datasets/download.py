"""An address -> a file with the expected checksum, with progress while it comes."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from weft.errors import ExecutionError
from weft.files import open_regular
from weft.train.checkpoints.durable_file import write_durably

TIMEOUT = 30  # seconds without a byte
PIECE = 2**18
LARGEST = 2**30


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
    write_durably(path, [content])
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
            if come > LARGEST:
                raise OSError(f"more than {LARGEST:,} bytes came")
            if sys.stderr.isatty():
                share = f"{100 * come / expected:3.0f} % of " if expected else ""
                sys.stderr.write(f"\r{name}: {share}{max(come, expected):,} bytes")
            yield piece
    if sys.stderr.isatty():
        sys.stderr.write("\n")
