"""A file that `torch.save` wrote -> its tensors by name and the rest, by the safe unpickler after checksums agree.

`torch.load` itself compares no checksum. Nothing is ever unpickled that can run code.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from weft.errors import CheckpointError, UsageError
from weft.train.checkpoints.foreign_numbers import STAND_INS, plain
from weft.train.checkpoints.tensor_file import NotTensorsError, file_error, no_checksum, opened
from weft.train.checkpoints.told import Told, nobody

ZIP_START = b"PK\x03\x04"
PICKLE_START = b"\x80"
READ_SIZE = 2**20
FOLDER = 0x10  # among a record's attributes: PyTorch's reader gives such a one memory, and reads nothing into it
# Where people put the state_dict of a model among other things.
USUAL_PLACES = ("state_dict", "model_state_dict", "model_state", "model", "net", "module")
_reading = threading.Lock()


def is_foreign(path: Path) -> bool:
    """Whether a file begins as one of `torch.save`: a zip archive, or a pickle as PyTorch wrote before 1.6."""
    with opened(path) as file:
        return begins_foreign(file)


def begins_foreign(file: BinaryIO) -> bool:
    """Tell it of an open file, which stays at its beginning."""
    start = file.read(8)
    file.seek(0)
    # A safetensors file begins with the length of its header, of which the upper bytes are zero.
    return start.startswith(ZIP_START) or (start.startswith(PICKLE_START) and start[7:] != b"\0")


def read_foreign(
    path: Path, file: BinaryIO, *, verify: bool, told: Told = nobody
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the tensors of an open file's model by name, and what else it holds."""
    archive = file.read(4) == ZIP_START
    file.seek(0)
    if archive:
        _check_archive(path, file, verify, told)
        file.seek(0)
    elif verify:
        raise no_checksum(path, "it carries no checksum", "PyTorch wrote pickles without an archive before version 1.6")
    try:
        # PyTorch's list is the process's: two threads in it would take each other's entries away, or leave them there.
        # Nobody waits here for anything but a file.
        with _reading, torch.serialization.safe_globals(STAND_INS):
            content = plain(torch.load(file, map_location="cpu", weights_only=True))
    except UsageError as error:
        raise _not_tensors(path, error.fact, error.why) from error
    except pickle.UnpicklingError as error:
        raise _not_tensors(path, "it holds more than tensors and plain values", _reason(error)) from error
    except CheckpointError:
        raise
    except Exception as error:
        raise file_error(path, "PyTorch cannot read it", why=f"{type(error).__name__}: {error}") from error
    return _tensors(path, content)


def _check_archive(path: Path, file: BinaryIO, verify: bool, told: Told) -> None:
    """Compare each record with its checksum; a record takes as many bytes of the file as it has, none is packed."""
    try:
        with zipfile.ZipFile(file) as archive:
            size, done = os.fstat(file.fileno()).st_size, 0
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise file_error(path, "two of its records have one name")
            for record in archive.infolist():
                if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
                    raise file_error(path, f"its record {record.filename!r} is packed, which torch.save never does")
                if record.filename.endswith("/") or record.external_attr & FOLDER:
                    raise file_error(path, f"its record {record.filename!r} says that it is a folder")
                if verify:
                    for length in _read_through(archive, record):
                        done += length
                        told(f"checking {path}", done, size)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError, RuntimeError, zlib.error) as error:
        if isinstance(error, CheckpointError):
            raise
        # An archive begins as one and has its contents at its end.
        cut = str(error) == "File is not a zip file"
        why = "its end is missing: it was cut" if cut else str(error) or type(error).__name__
        raise file_error(path, "it is damaged", why=why) from error


def _read_through(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> Iterator[int]:
    """Give the lengths of the pieces that were read."""
    with archive.open(record) as content:
        while piece := content.read(READ_SIZE):  # the end compares the checksum
            yield len(piece)


def _tensors(path: Path, content: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the one table of tensors in what a file holds; the rest is what training kept beside it."""
    if not isinstance(content, Mapping):
        raise _not_tensors(path, f"it holds a value of type {type(content).__name__}, not a table of tensors", None)
    if _is_table(content):
        return dict(content), {}
    places = [place for place in USUAL_PLACES if _is_table(content.get(place))]
    if len(places) == 1:
        return dict(content[places[0]]), {str(name): part for name, part in content.items() if name != places[0]}
    entries = "its entries are " + ", ".join(str(name) for name in list(content)[:20])
    raise _not_tensors(path, "it is not clear where in it the model's tensors are", entries)


def _not_tensors(path: Path, problem: str, why: str | None) -> NotTensorsError:
    return NotTensorsError(
        f"{path} cannot be loaded: {problem}",
        why=why,
        fix="where it was made, save the tensors alone: torch.save(net.state_dict(), path)",
    )


def _reason(error: pickle.UnpicklingError) -> str:
    """Name what a pickle would have run; PyTorch's own advice is to run it, which nobody should."""
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    if named is None:
        return "reading it would run code that the file chooses"
    return f"reading it would use {named[1]}, so it could run code that the file chooses"


def _is_table(content: Any) -> bool:
    """Whether these are tensors by name, and none of what is beside them is such a table itself."""
    return _holds_tensors(content) and not any(_holds_tensors(item) for item in content.values())


def _holds_tensors(content: Any) -> bool:
    return (
        isinstance(content, Mapping)
        and all(isinstance(name, str) for name in content)
        and any(isinstance(item, torch.Tensor) for item in content.values())
    )
