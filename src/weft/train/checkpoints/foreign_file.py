"""Read files of others: of `torch.save`, by the safe unpickler after its checksums agree, and `.params`, written, too.

`torch.load` itself compares no checksum. Nothing is ever unpickled that can run code. NumPy's functions for pickles
take any type and any state, so none of them is ever called for a file: what stands for them here knows numbers and
their bytes, and refuses the rest.

MXNet's `.params` are a table of tensors, without a checksum. Names keep what MXNet begins them with (`arg:` or `aux:`),
so that a file that is written back is the one that was read.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from weft.errors import CheckpointError, UsageError
from weft.params_file import (
    PARAMS_ENDING,
    TYPE_NUMBERS,
    SparseArrayError,
    begins_as_params,
    read_arrays,
    written_arrays,
)
from weft.train.checkpoints.tensor_file import (
    NotTensorsError,
    Told,
    file_error,
    no_checksum,
    nobody,
    opened,
    write_durably,
)

# Of names whose readers call torch.load: transformers writes .bin, Lightning .ckpt, older examples .pth.tar.
TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar")
KINDS = "biufc"  # truth values, integers, floating and complex numbers
ZIP_START = b"PK\x03\x04"
PICKLE_START = b"\x80"
READ_SIZE = 2**20
FOLDER = 0x10  # among a record's attributes: PyTorch's reader gives such a one memory, and reads nothing into it
# Where people put the state_dict of a model among other things.
USUAL_PLACES = ("state_dict", "model_state_dict", "model_state", "model", "net", "module")
_reading = threading.Lock()


class NumpyType:
    """Stands for `numpy.dtype`."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        """Take the order of bytes; whatever else there is belongs to types that are refused."""
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        self.order = order if order in ("<", ">", "|", "=") else ""

    def kind(self) -> np.dtype[Any]:
        """Give the type itself."""
        code = self.code if isinstance(self.code, str) else ""
        if not self.order or code[:1] not in KINDS or not code[1:].isdecimal() or int(code[1:]) > 16:
            raise UsageError(f"it holds NumPy elements of type {self.code!r}, which are no numbers")
        return np.dtype(code if self.order == "|" else self.order + code)

    def read(self, content: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Make an array of bytes."""
        kind = self.kind()
        if not isinstance(content, bytes) or len(content) != math.prod(shape) * kind.itemsize:
            raise UsageError("it holds a NumPy array whose bytes are not as many as its sizes say")
        return np.frombuffer(content, kind).reshape(shape).astype(kind.newbyteorder("="))


class NumpyArray:
    """Stands for `numpy.ndarray`."""

    def __init__(self, *_: Any) -> None:
        self.value: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        """Take sizes, type, order of dimensions, and bytes."""
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], NumpyType):
            raise UsageError("it holds a NumPy array of another kind")
        _, shape, elements, by_columns, content = state
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise UsageError("it holds a NumPy array of impossible sizes")
        read = elements.read(content, shape[::-1] if by_columns else shape)
        self.value = read.T if by_columns else read


def number(elements: Any, content: Any) -> Any:
    """Stand for NumPy's function that makes a number: gives a Python one."""
    if not isinstance(elements, NumpyType):
        raise UsageError("it holds a NumPy number of another kind")
    return elements.read(content, ()).item()


def begun_array(*_: Any) -> NumpyArray:
    """Stand for NumPy's function that begins an array."""
    return NumpyArray()


def no_bytes(*given: Any) -> bytes:
    """Stand for `bytes`, which is how a pickle says that an array is empty."""
    if given:
        raise UsageError("it calls bytes with arguments, which no array needs")
    return b""


# What a pickle calls each: the module has had two names.
STAND_INS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (NumpyType, "numpy.dtype"),
    (NumpyArray, "numpy.ndarray"),
    (no_bytes, "builtins.bytes"),
    *((number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((begun_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]


def plain(content: Any) -> Any:
    """Put arrays in the place of what stood for them; what the file holds once, however often it names it, is one."""
    return _Plain().of(content)


class _Plain:
    """Changes tables and lists where they are, so that those who share one, also in a circle, share it afterwards."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # by identity; what was made of it, and None while a tuple is being made
        self._kept: list[Any] = []  # lives as long as the numbers above

    def of(self, content: Any) -> Any:
        """Give what becomes of a value."""
        if isinstance(content, NumpyArray):
            if content.value is None:
                raise UsageError("it holds a NumPy array without elements")
            return content.value
        if isinstance(content, NumpyType):
            return content.kind()
        if not isinstance(content, (dict, list, tuple, set, frozenset)):
            return content
        if id(content) in self._seen:
            found = self._seen[id(content)]
            if found is None:
                raise UsageError("it holds a tuple that holds itself")
            return found
        self._kept.append(content)
        self._seen[id(content)] = None if isinstance(content, (tuple, frozenset)) else content
        try:
            found = self._changed(content)
        except RecursionError as error:
            raise UsageError("it holds values that nest too deeply") from error
        self._seen[id(content)] = found
        return found

    def _changed(self, content: Any) -> Any:
        if isinstance(content, dict):
            if any(isinstance(key, (NumpyArray, NumpyType)) for key in content):
                raise UsageError("it holds a table with a key that no table can have")
            for key in content:
                content[key] = self.of(content[key])
        elif isinstance(content, list):
            content[:] = map(self.of, content)
        elif type(content) is tuple:
            return tuple(map(self.of, content))
        return content


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


def write_torch(path: Path, model: dict[str, Any], parts: dict[str, Any], told: Told = nobody) -> None:
    """Write a file that `torch.load` reads without being told to trust it."""
    if "model" in parts:
        raise UsageError(f"{path}: the model itself is saved under the name model", fix="give the part another name")
    content = io.BytesIO()
    torch.save(parts, content)
    content.seek(0)
    try:
        torch.load(content, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path}: what is saved beside the model is refused by torch.load",
            why=_reason(error),
            fix=f"{path.with_suffix('.safetensors')} takes numbers, texts, arrays, lists and dictionaries",
        ) from error
    content = io.BytesIO()
    torch.save({"model": model, **parts} if parts else model, content)
    write_durably(path, [content.getbuffer()], told)


START = 16


def begins_mxnet(path: Path, file: BinaryIO) -> bool:
    """Tell of an open file, which stays at its beginning, whether it is one: by its first bytes, or by its name."""
    start = file.read(START)
    file.seek(0)
    return path.suffix == PARAMS_ENDING or begins_as_params(start)


def is_mxnet(path: Path) -> bool:
    """Tell it of a file by its name."""
    with opened(path) as file:
        return begins_mxnet(path, file)


def read_mxnet(path: Path, file: BinaryIO, *, verify: bool) -> dict[str, torch.Tensor]:
    """Read the tensors of an open file by name; those of a list without names are called 0, 1, ..."""
    try:
        arrays, names = read_arrays(file.read(), str(path))
    except SparseArrayError as error:
        raise NotTensorsError(error.fact, fix=error.fix) from error
    names = names or [str(place) for place in range(len(arrays))]
    if len(set(names)) < len(names):
        raise file_error(path, "two of its arrays have one name")
    if verify:
        raise no_checksum(path, "it carries no checksum", "MXNet's .params files have none; its sizes agree")
    return dict(zip(names, arrays, strict=True))


def write_mxnet(path: Path, model: dict[str, Any], told: Told = nobody) -> None:
    """Write a file that MXNet's `nd.load` reads."""
    for name, value in model.items():
        if not isinstance(value, torch.Tensor) or value.dtype not in TYPE_NUMBERS:
            kind = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__
            raise UsageError(
                f"{path}: {name} is of type {kind}, which MXNet's files cannot hold",
                why="they hold " + ", ".join(str(dtype).removeprefix("torch.") for dtype in TYPE_NUMBERS),
            )
    write_durably(path, [written_arrays(list(model.values()), list(model))], told)
