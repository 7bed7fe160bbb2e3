"""NumPy's numbers and arrays as pickles hold them -> plain values, made by code of our own.

NumPy's functions for pickles take any type and any state, so none of them is ever called for a file. What stands for
them here knows numbers and their bytes, and refuses the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """Put arrays in the place of what stood for them; what the file holds once, however often it names it, is one."""
    return _Plain().of(content)


class _Plain:
    """Changes tables and lists where they are, so that those who share one, also in a circle, share it afterwards."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # by identity; what was made of it, and None while a tuple is being made
        self._kept: list[Any] = []  # lives as long as the numbers above

    def of(self, content: Any) -> Any:
        """Give what becomes of a value."""
        if isinstance(content, Array):
            if content.value is None:
                raise UsageError("it holds a NumPy array without elements")
            return content.value
        if isinstance(content, Elements):
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
            if any(isinstance(key, (Array, Elements)) for key in content):
                raise UsageError("it holds a table with a key that no table can have")
            for key in content:
                content[key] = self.of(content[key])
        elif isinstance(content, list):
            content[:] = map(self.of, content)
        elif type(content) is tuple:
            return tuple(map(self.of, content))
        return content
