"""Sum arrays of several devices under keys, and spread what was summed: `mx.kv`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.mx.arrays.ndarray import NDArray
from weft.mx.arrays.sparse import retain
from weft.mx.base.errors import MXNetError
from weft.mx.training.optimizer import Optimizer, Updater

KINDS = ("local", "local_update_cpu", "local_allreduce_cpu", "local_allreduce_device", "device")


def _pairs(keys: Any, values: Any) -> list[tuple[Any, Any]]:
    if isinstance(keys, (list, tuple)):
        if len(keys) != len(values):
            raise AssertionError(f"{len(keys)} keys were given {len(values)} values")
        return list(zip(keys, values, strict=True))
    return [(keys, values)]


def _listed(value: Any) -> list[NDArray]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class KVStore:
    """Arrays under keys: a push adds those of all devices, a pull writes the sum into arrays of any device."""

    rank = 0
    num_workers = 1

    def __init__(self, kind: str) -> None:
        self.type = kind
        self._arrays: dict[Any, NDArray] = {}
        self._updater: Callable[[Any, NDArray, NDArray], None] | None = None

    def _array(self, key: Any) -> NDArray:
        if key not in self._arrays:
            raise MXNetError(f"Check failed: !local.is_none() : key {key} has not been inited")
        return self._arrays[key]

    def init(self, key: Any, value: Any) -> None:
        """Give keys their first arrays."""
        for one, array in _pairs(key, value):
            if one in self._arrays:
                raise MXNetError(f"Check failed: local_.find(key) == local_.end() : duplicate init of key {one}")
            self._arrays[one] = _listed(array)[0].copy()

    def push(self, key: Any, value: Any, priority: int = 0) -> None:  # noqa: ARG002
        """Add arrays of several devices: the sum takes the place of the key's array, or is given to the updater."""
        for one, arrays in _pairs(key, value):
            local = self._array(one)
            given = _listed(arrays)
            total = given[0].as_in_context(local.context)
            for other in given[1:]:
                total = total + other.as_in_context(local.context)
            if self._updater is None:
                self._arrays[one] = total.copy() if len(given) == 1 else total
            else:
                self._updater(one, total, local)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:  # noqa: ARG002
        """Write the array of a key into others."""
        for one, arrays in _pairs(key, out):
            for array in _listed(arrays):
                self._array(one).copyto(array)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:  # noqa: ARG002
        """Write some rows of the array of a key into others, whose other rows become 0."""
        if row_ids is None:
            raise AssertionError("row_ids must be provided")
        for one, arrays in _pairs(key, out):
            targets = _listed(arrays)
            ids = _listed(row_ids) if isinstance(row_ids, (list, tuple)) else [row_ids] * len(targets)
            for array, wanted in zip(targets, ids, strict=True):
                retain(self._array(one).tostype("row_sparse"), wanted).copyto(array)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then pull."""
        self.push(key, value, priority)
        if out is not None:
            self.pull(key, out, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Give keys their first arrays, and write them into others."""
        self.init(key, value)
        self.pull(key, out, priority)

    def set_updater(self, updater: Callable[[Any, NDArray, NDArray], None]) -> None:
        """Let pushes update arrays by this function of key, sum and array."""
        self._updater = updater

    _set_updater = set_updater

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Let pushes update arrays by an optimizer."""
        self._updater = Updater(optimizer)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write what the optimizer keeps between updates."""
        _ = dump_optimizer
        if not isinstance(self._updater, Updater):
            raise AssertionError("Cannot save states for distributed training")  # noqa: TRY004  # MXNet's
        Path(fname).write_bytes(self._updater.get_states())

    def load_optimizer_states(self, fname: str) -> None:
        """Read what an optimizer kept."""
        if not isinstance(self._updater, Updater):
            raise AssertionError("Cannot load states for distributed training")  # noqa: TRY004  # MXNet's
        self._updater.set_states(Path(fname).read_bytes())

    def barrier(self) -> None:
        """Wait for the other workers, of which there are none."""


def create(name: str = "local") -> KVStore:
    """A store of this kind; those of several machines are refused by name."""
    if not isinstance(name, str):
        raise TypeError("name must be a string")
    if name.lower() not in KINDS:
        raise MXNetError(f"kvstore {name!r} is not in weft.mx: use 'local' or 'device'")
    return KVStore(name.lower())
