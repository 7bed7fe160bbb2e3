"""NumPy's numbers and arrays as pickles hold them -> plain values, made by code of our own.

NumPy's functions for pickles take any type and any state, so none of them is ever called for a file. What stands for
them here knows numbers and their bytes, and refuses the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.errors import UsageError

KINDS = "biufc"  # truth values, integers, floating and complex numbers


class Elements:
    """Stands for `numpy.dtype`."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        """Take the order of bytes; whatever else there is belongs to types that are refused."""
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        self.order = order if order in ("<", ">", "|", "=") else ""

    def read(self, content: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Make an array of bytes."""
        code = self.code if isinstance(self.code, str) else ""
        if not self.order or code[:1] not in KINDS or not code[1:].isdecimal() or int(code[1:]) > 16:
            raise UsageError(f"it holds NumPy elements of type {self.code!r}, which are no numbers")
        kind = np.dtype(code if self.order == "|" else self.order + code)
        if not isinstance(content, bytes) or len(content) != math.prod(shape) * kind.itemsize:
            raise UsageError("it holds a NumPy array whose bytes are not as many as its sizes say")
        return np.frombuffer(content, kind).reshape(shape).astype(kind.newbyteorder("="))


class Array:
    """Stands for `numpy.ndarray`."""

    def __init__(self, *_: Any) -> None:
        self.value: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        """Take sizes, type, order of dimensions, and bytes."""
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], Elements):
            raise UsageError("it holds a NumPy array of another kind")
        _, shape, elements, by_columns, content = state
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise UsageError("it holds a NumPy array of impossible sizes")
        read = elements.read(content, shape[::-1] if by_columns else shape)
        self.value = read.T if by_columns else read


def number(elements: Any, content: Any) -> Any:
    """Stand for NumPy's function that makes a number: gives a Python one."""
    if not isinstance(elements, Elements):
        raise UsageError("it holds a NumPy number of another kind")
    return elements.read(content, ()).item()


def begun_array(*_: Any) -> Array:
    """Stand for NumPy's function that begins an array."""
    return Array()


def no_bytes(*given: Any) -> bytes:
    """Stand for `bytes`, which is how a pickle says that an array is empty."""
    if given:
        raise UsageError("it calls bytes with arguments, which no array needs")
    return b""


# What a pickle calls each: the module has had two names.
STAND_INS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (Elements, "numpy.dtype"),
    (Array, "numpy.ndarray"),
    (no_bytes, "builtins.bytes"),
    *((number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((begun_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]


def plain(content: Any) -> Any:
    """Put arrays in the place of what stood for them."""
    if isinstance(content, Array):
        if content.value is None:
            raise UsageError("it holds a NumPy array without elements")
        return content.value
    if isinstance(content, Mapping):
        for key in content:
            content[key] = plain(content[key])  # type: ignore[index]  # what the unpickler makes can be written
        return content
    if type(content) in (list, tuple):
        return type(content)(map(plain, content))
    return content
