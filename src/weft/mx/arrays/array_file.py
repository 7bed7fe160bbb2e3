"""Save arrays to `.params` files and load them, as `nd.save` and `nd.load` do: named or in a list."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import CheckpointError, ExecutionError
from weft.files import given_file, write_atomically
from weft.mx.arrays.ndarray import NDArray, ready
from weft.mx.base.context import cpu
from weft.mx.base.errors import MXNetError
from weft.params_file import read_arrays, written_arrays


def _loaded(content: bytes, name: str) -> Any:
    try:
        arrays, names = read_arrays(content, name)
    except CheckpointError as error:
        raise MXNetError(f"Invalid NDArray file format: {error.fact}") from error
    made = [ready(array, cpu()) for array in arrays]
    return dict(zip(names, made, strict=True)) if names else made


def load(fname: str | os.PathLike[str]) -> Any:
    """The arrays of a file: a dict where they have names, else a list."""
    path = given_file(fname, "nd.load", 'nd.load("net-0000.params")')
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MXNetError(f'LocalFileSystem: Check failed: allow_null: :Open "{fname}": {error.strerror}') from error
    return _loaded(content, str(fname))


def load_frombuffer(buf: bytes) -> Any:
    """The arrays that the content of a file has."""
    if not isinstance(buf, (bytes, bytearray, memoryview)):
        raise TypeError("buf required to be a string or bytes")
    return _loaded(bytes(buf), "the buffer")


def save(fname: str | os.PathLike[str], data: NDArray | Sequence[NDArray] | Mapping[str, NDArray]) -> None:
    """Write arrays, or named ones, to a file: waits for them."""
    if isinstance(data, NDArray):
        data = [data]
    names = list(data) if isinstance(data, Mapping) else []
    arrays = list(data.values()) if isinstance(data, Mapping) else list(data)
    if any(not isinstance(array, NDArray) for array in arrays):
        raise TypeError("save only accept dict str->NDArray or list of NDArray")
    for array in arrays:
        array.wait_to_read()
    path = given_file(fname, "nd.save", 'nd.save("net-0000.params", arrays)')
    try:
        write_atomically(path, [written_arrays([array.raw() for array in arrays], names)])
    except ExecutionError as error:
        raise MXNetError(f'LocalFileSystem: Check failed: allow_null: :Open "{fname}": {error}') from error
