"""Keep on disk the types of operators' results that a trace asked for, for the next trace of the like.

Rows are facts of PyTorch, whatever they were learned for. The name of an entry says only in which traces its rows are
likely to be wanted; a trace that finds rows missing asks PyTorch, and writes all it has used.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from weft.codegen.objects.native import ObjectCache
from weft.compile.plan_cache import planning_version
from weft.config import config
from weft.errors import UsageError
from weft.trace.results.result_types import ResultRow, ResultTypes, rows_as_data, rows_from_data

TYPE_FOLDER = "types"
LARGEST_CACHE = 16 * 1024 * 1024
MOST_ROWS = 1 << 16

log = logging.getLogger("weft.runtime")

# All rows that this process knows: each is true for itself, so threads may add to them in any order.
_rows: dict[str, ResultRow] = {}


def known_types(name: str) -> ResultTypes:
    """Give what is known of operators' results, for one trace: by this process, and by the entry of this name."""
    folder = config().cache_dir
    if len(_rows) > MOST_ROWS:
        _rows.clear()
    found = {} if folder is None else _read(_cache(folder).read(name), name)
    _rows.update(found)
    return ResultTypes(_rows)


def keep_types(name: str, types: ResultTypes) -> None:
    """Keep all that a trace has asked for, if it had to learn some of it."""
    folder = config().cache_dir
    if folder is not None and types.learned:
        body = json.dumps(rows_as_data(types.used), separators=(",", ":"))
        _cache(folder).write(name, name.encode() + body.encode())


def trace_name(name: str, leaves: Iterable[Any], tensors: Iterable[torch.Tensor]) -> str:
    """Name the traces that ask about the same: of a function of this name, its arguments, the tensors it reaches."""
    given = [_look(leaf) if isinstance(leaf, torch.Tensor) else type(leaf).__name__ for leaf in leaves]
    modes = (torch.get_default_dtype(), torch.is_grad_enabled())
    parts = (planning_version(), torch.__version__, modes, name, given, [_look(tensor) for tensor in tensors])
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, *tensor.shape


def _read(entry: bytes | None, name: str) -> dict[str, ResultRow]:
    # An entry that was moved to another's place is whole, and says whose it is.
    if entry is None or not entry.startswith(name.encode()):
        return {}
    try:
        return rows_from_data(json.loads(entry[len(name) :]))
    except (UsageError, ValueError) as error:
        log.info("the kept types %s are not used: %s", name, error)
        return {}


@cache
def _cache(folder: Path) -> ObjectCache:
    return ObjectCache(folder / TYPE_FOLDER, LARGEST_CACHE)
