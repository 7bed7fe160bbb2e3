"""Say whether blocks and data are given arrays of `mx.np`, which may have no axes: `mx.util`."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any


class _NumpyMode(threading.local):
    """Whether this thread goes by `mx.np`; other threads begin as the process does."""

    active: bool | None = None


_mode = _NumpyMode()
_of_process = [False]
METHODS = ("__init__", "forward", "hybrid_forward", "__call__")  # of a class, that go by `mx.np` if it is to


def is_np_array() -> bool:
    """Whether arrays are those of `mx.np`."""
    return _of_process[0] if _mode.active is None else _mode.active


is_np_shape = is_np_array


def set_np(shape: bool = True, array: bool = True, dtype: bool = False) -> None:
    """Go over to `mx.np`."""
    _ = dtype
    if array and not shape:
        raise ValueError("NumPy Shape semantics is required in using NumPy array semantics.")
    _of_process[0] = bool(array)


set_np_shape = set_np


def reset_np() -> None:
    """Go back to `nd`."""
    _of_process[0] = False


@contextlib.contextmanager
def np_array(active: bool = True) -> Iterator[None]:
    """Let arrays be those of `mx.np` in a `with` block, or not."""
    before, _mode.active = _mode.active, active
    try:
        yield
    finally:
        _mode.active = before


np_shape = np_array


def use_np(function: Any) -> Any:
    """Let a function, or what a class does, go by `mx.np`."""
    if isinstance(function, type):
        for name in METHODS:
            if name in vars(function):
                setattr(function, name, use_np(vars(function)[name]))
        return function

    @functools.wraps(function)
    def with_numpy(*args: Any, **given: Any) -> Any:
        with np_array():
            return function(*args, **given)

    return with_numpy


use_np_array = use_np_shape = use_np
