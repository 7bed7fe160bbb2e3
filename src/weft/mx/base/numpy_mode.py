"""Say that arrays are `nd`'s, and not those of MXNet's NumPy interface, which `weft.mx` does not have: `mx.util`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

REFUSAL = "MXNet's NumPy interface (mx.np) is not in weft.mx: it has nd"


def is_np_array() -> bool:
    """Whether arrays are those of `mx.np`."""
    return False


def is_np_shape() -> bool:
    """Whether arrays may have no axes, as in NumPy."""
    return False


@contextlib.contextmanager
def np_shape(active: bool = True) -> Iterator[None]:
    """Let arrays have no axes in a `with` block: refused, unless it asks for what is."""
    if active:
        raise NotImplementedError(REFUSAL)
    yield


def set_np(*_places: Any, **_given: Any) -> NoReturn:
    """Go over to `mx.np`: refused."""
    raise NotImplementedError(REFUSAL)


use_np = use_np_array = use_np_shape = set_np_shape = set_np


def refuse_name(name: str) -> NoReturn:
    """Say that a name of the interface, of which `from mxnet import np` asks, is not there."""
    raise ImportError(f"cannot import name {name!r}: {REFUSAL}")


def reset_np() -> None:
    """Go back to `nd`, which is where one is."""
