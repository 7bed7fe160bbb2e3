"""Read and write MXNet's `.params` files as checkpoints: a table of tensors, without a checksum.

Names keep what MXNet begins them with (`arg:` or `aux:`), so that a file that is written back is the one that was read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import torch

from weft.errors import UsageError
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
