"""Write and read a safetensors file in which every byte is under a digest; docs/checkpoint-file.md describes it.

The file is there whole or not at all, and a signal from the keyboard waits until it is in place. Other tools read its
tensors.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.nn.parameter import is_lazy

from weft.errors import CheckpointError, UnsupportedError, UsageError
from weft.files import (
    NotDurableError,
    is_stream,
    open_regular,
    resolved_target,
    sweep_orphans,
    what_is_near,
    write_whole,
)
from weft.interrupts import interrupts_after

Told = Callable[[str, int, int], None]  # what is done with which file, bytes so far, bytes in all
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".params")  # of checkpoints, anybody's
# How files begin that lie where checkpoints should.
OF_OTHERS = (
    (b"version ", "it is a pointer of Git LFS, in the place of the file: git lfs pull brings that"),
    (b"<", "it is a page of the web: what a download was answered with, perhaps"),
    (b"{", "it is a text in JSON"),
)
LARGEST_HEADER = 64 * 2**20
ALIGNMENT = 8
PIECE = 2**24  # bytes that are read, and taken into a digest, at once
LENGTH = struct.Struct("<Q")
DESCRIPTION = "weft"  # the metadata entry with everything that is not a tensor
HEADER_DIGEST = "weft.header"  # the metadata entry with the digest of the header, taken with zeros in its place
ZEROS = b"0" * 64
# A quote inside of a JSON string is escaped, so nothing that a user names can look like this entry.
DIGEST_PLACE = re.compile(rb'"weft\.header":"([0-9a-f]{64})"')
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64,
    "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
ITEM_SIZES = {code: dtype.itemsize for code, dtype in DTYPES.items()}
CODES = {dtype: code for code, dtype in DTYPES.items()}
# Types that the format lacks -> the one whose elements it stores, two in the place of one.
PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
PAIR_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in PAIRS}


def nobody(what: str, done: int, total: int) -> None:
    """Nobody asked."""


def write_durably(path: Path, pieces: Sequence[bytes | bytearray | memoryview], told: Told = nobody) -> None:
    """Write a file: temporary beside it, synced, renamed, its folder synced; through a link, and into a device."""
    size = sum(len(piece) for piece in pieces)
    try:
        path = resolved_target(path)
        if is_stream(path):  # who reads it may be slow: Ctrl-C does not wait for that
            write_whole(path, pieces)
            return
        with interrupts_after():
            sweep_orphans(path.parent)  # they take room
            check_room(path.parent, size)
            write_whole(path, pieces, lambda done: told(f"writing {path}", done, size))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _failure(path, error, size) from error


def check_room(folder: Path, size: int) -> None:
    """Raise CheckpointError unless the disk of a folder has room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise disk_full(folder, size, free)


def disk_full(folder: Path, size: int, free: int) -> CheckpointError:
    """Say that a file does not fit."""
    return CheckpointError(
        f"disk full: the checkpoint needs {size:,} bytes, and the disk of {folder} has {free:,} left",
        why="nothing was changed: earlier checkpoints are as they were",
        fix="make room or save elsewhere; weft.Checkpoints(folder, keep=2) keeps only the newest files",
    )


def _failure(path: Path, error: OSError, size: int) -> CheckpointError:
    if isinstance(error, NotDurableError):
        return CheckpointError(f"{path} is written, but may be lost if the machine stops now", why=str(error))
    if is_stream(path):
        return CheckpointError(f"{path} could not be written", why=error.strerror or str(error))
    if error.errno in NO_ROOM:
        return disk_full(path.parent, size, shutil.disk_usage(path.parent).free)
    return CheckpointError(
        f"{path} could not be written",
        why=error.strerror or str(error),
        fix="what was at this path before is unchanged; choose another path, or make its folder writable",
    )


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """The elements of one tensor, row by row."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TensorFile:
    """What a file holds: tensors in the order of their names in the header, and the description."""

    blocks: dict[str, TensorBytes]
    description: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HeaderRow:
    """A row of the header: what the bytes from `begin` to `end` after it are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class NoChecksumError(CheckpointError):
    """A file that carries nothing to check its bytes by: it may be sound, but nobody can tell."""


class MissingFileError(CheckpointError):
    """A file that is not there, or not any more: who found its name in a folder may look again."""


class NotTensorsError(CheckpointError):
    """A file that is not damaged, as far as one can tell, and holds something else than one model's tensors."""


def file_error(path: Path, problem: str, *, why: str | None = None, fix: str | None = None) -> CheckpointError:
    """Make the error that names the file and what is wrong with it."""
    return CheckpointError(f"{path} cannot be loaded: {problem}", why=why, fix=fix or "load another checkpoint")


def no_checksum(path: Path, problem: str, why: str) -> NoChecksumError:
    """Make the error that says that a file cannot be verified, and how to load it all the same."""
    return NoChecksumError(
        f"{path} cannot be loaded: {problem}",
        why=why,
        fix="weft.load(path, net, verify=False) loads it unchecked, if you trust it",
    )


def packed(blocks: Mapping[str, TensorBytes], description: Mapping[str, Any]) -> list[bytes | bytearray | memoryview]:
    """Give the pieces of a file in order: the header, then the tensors, those of the widest elements first."""
    order = sorted(blocks, key=lambda name: (-ITEM_SIZES[blocks[name].dtype], name))
    digests = {name: hashlib.sha256(blocks[name].content).hexdigest() for name in order}
    text = json.dumps({**description, "digests": digests}, separators=(",", ":"), allow_nan=False)
    header: dict[str, Any] = {"__metadata__": {HEADER_DIGEST: ZEROS.decode(), DESCRIPTION: text}}
    position = 0
    for name in order:
        block = blocks[name]
        length = len(block.content)
        header[name] = {
            "dtype": block.dtype,
            "shape": list(block.shape),
            "data_offsets": [position, position + length],
        }
        position += length
    content = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    content += b" " * (-len(content) % ALIGNMENT)
    if len(content) > LARGEST_HEADER:
        raise CheckpointError(f"the checkpoint would have a header of {len(content)} bytes; the limit is 64 MiB")
    content = content.replace(ZEROS, header_digest(content).encode(), 1)
    return [LENGTH.pack(len(content)), content, *(blocks[name].content for name in order)]


def header_digest(header: bytes) -> str:
    """Give the digest of a header that has zeros where its digest goes; the length before it is under it too."""
    return hashlib.sha256(LENGTH.pack(len(header)) + header).hexdigest()


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read; what goes wrong until it is closed is an error that names it."""
    try:
        with open_regular(path) as file:
            yield file
    except FileNotFoundError as error:
        why, fix = what_is_near(path, SUFFIXES)
        raise MissingFileError(f"{path} cannot be loaded: there is no such file", why=why, fix=fix) from error
    except OSError as error:
        raise file_error(path, error.strerror or type(error).__name__) from error


def read_tensor_file(path: Path, *, verify: bool = True, told: Told = nobody) -> TensorFile:
    """Read a file; no size is believed before it is compared with the file's, and nothing is used before its digest."""
    with opened(path) as file:
        return read_tensors(path, file, verify=verify, told=told)


def read_tensors(path: Path, file: BinaryIO, *, verify: bool, told: Told) -> TensorFile:
    """Read an open file from its beginning."""
    size = os.fstat(file.fileno()).st_size
    header = _read_header(path, file, size, verify)
    metadata, entries = _parse_header(path, header)
    _check_layout(path, entries, size - LENGTH.size - len(header))
    description = _description(path, metadata)
    digests = _digests(path, description, entries) if verify else None
    return TensorFile(dict(_read_blocks(_Reading(path, file, size, told), entries, digests)), description)


def _read_header(path: Path, file: BinaryIO, size: int, verify: bool) -> bytes:
    start = file.read(LENGTH.size)
    length = LENGTH.unpack(start)[0] if len(start) == LENGTH.size else 0
    if not 0 < length <= min(LARGEST_HEADER, size - LENGTH.size):
        other = next((kind for begin, kind in OF_OTHERS if start.startswith(begin)), None)
        why = other or ("it was cut, or is another kind of file" if size else "it is empty")
        raise file_error(path, "it does not begin as a checkpoint", why=why)
    header = file.read(length)
    if not verify:
        return header
    places = list(DIGEST_PLACE.finditer(header))
    if len(places) != 1:
        raise no_checksum(path, "it carries no digest to check it by", "it is damaged, or another tool wrote it")
    found = places[0]
    blank = header[: found.start(1)] + ZEROS + header[found.end(1) :]
    if header_digest(blank).encode() != found[1]:
        raise file_error(path, "its header is damaged", why="the digest in it is of other bytes")
    return header


def _parse_header(path: Path, header: bytes) -> tuple[dict[str, Any], list[HeaderRow]]:
    try:
        rows = json.loads(header.decode("utf-8"), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise file_error(path, "its header has no meaning", why=str(error)) from error
    if not isinstance(rows, dict):
        raise file_error(path, "its header is not a table")
    metadata = rows.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise file_error(path, "its metadata is not a table of texts")
    return metadata, sorted((_entry(path, name, row) for name, row in rows.items()), key=lambda row: row.begin)


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name stands twice")
    return table


def _entry(path: Path, name: str, row: Any) -> HeaderRow:
    fields: dict[str, Any] = row if isinstance(row, dict) else {}
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if not (isinstance(dtype, str) and dtype in ITEM_SIZES and _sizes(shape) and _sizes(offsets) and len(offsets) == 2):
        raise file_error(path, f"the header's row of its tensor {name!r} has no meaning")
    return HeaderRow(name, dtype, tuple(shape), *offsets)


def _sizes(numbers: Any) -> bool:
    """Whether this is a list of sizes; up to 2**56, as PyTorch counts bytes in 63 bits."""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**56 for number in numbers)


def _check_layout(path: Path, entries: Sequence[HeaderRow], size: int) -> None:
    """Tensors follow one another without gap or overlap up to the file's end, each as long as its shape says."""
    position = 0
    for entry in entries:
        length = math.prod(entry.shape) * ITEM_SIZES[entry.dtype]
        if entry.begin != position or entry.end - entry.begin != length or entry.end > size:
            raise file_error(path, f"its tensor {entry.name!r} does not lie where it must", why="the file was cut")
        if math.prod(max(extent, 1) for extent in entry.shape) >= 2**56 or len(entry.shape) > 64:
            raise file_error(path, f"its tensor {entry.name!r} would have impossible sizes")
        position = entry.end
    if position != size:
        raise file_error(path, f"its tensors have {position} bytes, and it has {size} for them")


def _description(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get(DESCRIPTION, "{}")
    try:
        description = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise file_error(path, "its description has no meaning", why=str(error)) from error
    if not isinstance(description, dict):
        raise file_error(path, "its description is not a table")
    return description


def _digests(path: Path, description: Mapping[str, Any], entries: Sequence[HeaderRow]) -> dict[str, Any]:
    digests = description.get("digests")
    if not isinstance(digests, dict) or digests.keys() != {entry.name for entry in entries}:
        raise file_error(path, "its digests are of other tensors than it has")
    return digests


@dataclass(frozen=True, slots=True)
class _Reading:
    """A file behind its header, its size, and who is told how far it is read."""

    path: Path
    file: BinaryIO
    size: int
    told: Told

    def block(self, entry: HeaderRow, digest: Any) -> bytearray:
        """Read a tensor's bytes, piece by piece, into its memory and its digest."""
        content = bytearray(entry.end - entry.begin)
        view = memoryview(content)
        for begin in range(0, len(view), PIECE):
            piece = view[begin : begin + PIECE]
            if self.file.readinto(piece) != len(piece):  # type: ignore[attr-defined]  # every buffered reader has it
                raise file_error(
                    self.path, f"its tensor {entry.name!r} ends too early", why="the file changed while it was read"
                )
            if digest is not None:
                digest.update(piece)
            self.told(f"reading {self.path}", self.file.tell(), self.size)
        return content


def _read_blocks(
    reading: _Reading, entries: Sequence[HeaderRow], digests: Mapping[str, Any] | None
) -> Iterator[tuple[str, TensorBytes]]:
    path = reading.path
    for entry in entries:
        digest = None if digests is None else hashlib.sha256()
        content = reading.block(entry, digest)
        if digests is not None and digest is not None and digest.hexdigest() != digests[entry.name]:
            raise file_error(path, f"its tensor {entry.name!r} is damaged", why="its digest is of other bytes")
        if entry.dtype == "BOOL" and content.strip(b"\0\1"):
            raise file_error(path, f"its tensor {entry.name!r} has elements that are neither true nor false")
        yield entry.name, TensorBytes(entry.dtype, entry.shape, content)


def to_block(name: str, tensor: torch.Tensor) -> tuple[TensorBytes, str | None]:
    """Give the bytes of a tensor, and the name of its type if it is stored as pairs of another; shares its memory."""
    problem = None
    if is_lazy(tensor):
        problem = "it has no size yet: call the model once before saving it"
    elif tensor.layout is not torch.strided or tensor.is_quantized:
        problem = f"it is a {tensor.layout} tensor of {tensor.dtype}"
    elif tensor.device.type == "meta":
        problem = "it is on the device meta and has no values"
    elif type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        problem = f"it is a {type(tensor).__name__}, whose values live elsewhere"
    elif tensor.dtype not in CODES and tensor.dtype not in PAIRS:
        problem = f"the format has no elements of {tensor.dtype}"
    if problem:
        raise UnsupportedError(f"the tensor {name} cannot be stored in a checkpoint", why=problem)
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    shape, dtype, pair = tuple(plain.shape), plain.dtype, None
    if dtype in PAIRS:
        pair, shape = str(dtype).removeprefix("torch."), (*shape, 2)
        dtype = PAIRS[dtype]
    content: Any = plain.reshape(-1).view(torch.uint8).numpy()
    return TensorBytes(CODES[dtype], shape, memoryview(content)), pair


def to_blocks(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, TensorBytes], dict[str, str]]:
    """Give the blocks of named tensors, and the types of those that are stored as pairs."""
    stored = {name: to_block(name, tensor) for name, tensor in tensors.items()}
    pairs = {name: pair for name, (_, pair) in stored.items() if pair is not None}
    return {name: block for name, (block, _) in stored.items()}, pairs


def to_tensors(blocks: Mapping[str, TensorBytes], pairs: Any) -> dict[str, torch.Tensor]:
    """Make tensors of blocks, which own their memory from now on; an impossible row is a UsageError."""
    if not isinstance(pairs, dict) or not pairs.keys() <= blocks.keys():
        raise UsageError("its table of paired types is of other tensors than it has")
    return {name: _to_tensor(name, block, pairs.get(name)) for name, block in blocks.items()}


def _to_tensor(name: str, block: TensorBytes, pair: Any) -> torch.Tensor:
    dtype, shape = DTYPES[block.dtype], block.shape
    if pair is not None:
        wide = PAIR_NAMES.get(pair) if isinstance(pair, str) else None
        if wide is None or PAIRS[wide] is not dtype or shape[-1:] != (2,):
            raise UsageError(f"its tensor {name!r} cannot be of type {pair!r}")
        dtype, shape = wide, shape[:-1]
    if not block.content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(block.content, dtype=torch.uint8).view(dtype).reshape(shape)
