"""Encode what training keeps in Python (numbers, texts, lists, dictionaries, tensors in them) as JSON beside tensors.

Plain numbers, texts and lists are themselves; anything else is an object with one field that says what it is. Nothing
is ever called by a name that stands in a file.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from weft.errors import UnsupportedError, UsageError

SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
PLAIN = (str, int, bool, type(None))
DEEPEST, LONGEST_PLACE = 100, 80
SHARED, AGAIN = "shared", "again"  # what is held more than once: written, and named by its number
# What Python and PyTorch raise for values that nobody saved, such as a state of the wrong length.
MEANINGLESS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def encode(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Give JSON for a value; its tensors go to `tensors`, named after their place in it."""
    return _Encoder(tensors, _repeated(value)).of(value, place, 0)


def _repeated(value: Any) -> set[int]:
    """Find what is held more than once, by identity: what can be changed, or holds more than plain values."""
    seen: set[int] = set()
    repeated: set[int] = set()
    todo = [value]
    while todo:
        found = todo.pop()
        if isinstance(found, Mapping):
            inside = [*found.keys(), *found.values()]
        elif type(found) in (list, tuple, set, frozenset):
            inside = list(found)
        else:
            continue
        inside = [item for item in inside if type(item) not in PLAIN and type(item) is not float]
        if not inside and type(found) in (tuple, frozenset):
            continue
        if id(found) in seen:
            repeated.add(id(found))
            continue
        seen.add(id(found))
        todo += inside
    return repeated


class _Encoder:
    """Writes each value that is held more than once where it is met first, with a number, and the number elsewhere."""

    def __init__(self, tensors: dict[str, torch.Tensor], repeated: set[int]) -> None:
        self._tensors = tensors
        self._repeated = repeated
        self._numbers: dict[int, int] = {}  # of what is written
        self._around: set[int] = set()  # what is being written

    def of(self, value: Any, place: str, depth: int) -> Any:
        """Give JSON for a value."""
        kind = type(value)
        if kind in PLAIN or (kind is float and math.isfinite(value)):
            return value
        if isinstance(value, torch.Tensor):
            while place in self._tensors:  # under the keys 1 and "1" of one dictionary, say
                place += "'"
            self._tensors[place] = value
            return {"tensor": place}
        if id(value) not in self._repeated:
            return self._content(value, place, depth)
        if id(value) in self._around:
            raise UnsupportedError(f"{_shown(place)} cannot be stored in a checkpoint", why="it holds itself")
        if id(value) in self._numbers:
            return {AGAIN: self._numbers[id(value)]}
        self._around.add(id(value))
        content = self._content(value, place, depth)
        self._around.remove(id(value))
        number = self._numbers[id(value)] = len(self._numbers)
        return {SHARED: [number, content]}

    def _content(self, value: Any, place: str, depth: int) -> Any:
        if depth > DEEPEST:
            raise UnsupportedError(f"{_shown(place)} cannot be stored in a checkpoint", why="it nests too deeply")
        kind, below = type(value), depth + 1
        if kind is list:
            return [self.of(item, f"{place}.{index}", below) for index, item in enumerate(value)]
        if kind in MAPPINGS:
            rows = [
                [self.of(key, f"{place}.key{index}", below), self.of(item, _below(place, key, index), below)]
                for index, (key, item) in enumerate(value.items())
            ]
            return {MAPPINGS[kind]: rows}
        if kind in WRITERS:
            name, write = WRITERS[kind]
            return {name: self.of(write(value), place, depth)}
        if isinstance(value, np.generic):
            return self.of(value.item(), place, below)
        raise UnsupportedError(
            f"{_shown(place)} cannot be stored in a checkpoint",
            why=f"it is a {kind.__module__}.{kind.__qualname__}: a checkpoint holds numbers, texts, tensors and lists, "
            "tuples, sets and dictionaries of them, and runs no code when it is read",
            fix="give an object with state_dict() and load_state_dict(), or its plain values",
        )


def _shown(place: str) -> str:
    return place if len(place) <= LONGEST_PLACE else place[:LONGEST_PLACE] + "..."


def _below(place: str, key: Any, index: int) -> str:
    return f"{place}.{key}" if isinstance(key, (str, int)) else f"{place}.{index}"


def decode(data: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Make the value of JSON again; what has no meaning is a UsageError."""
    return _decoded(data, tensors, {})


def _decoded(data: Any, tensors: Mapping[str, torch.Tensor], shared: dict[int, Any]) -> Any:
    if isinstance(data, list):
        return [_decoded(item, tensors, shared) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise UsageError("a value in it has no meaning", why=f"an object with the fields {', '.join(data) or 'none'}")
    ((name, content),) = data.items()
    try:
        if name in BUILDERS:
            rows = [(_decoded(key, tensors, shared), _decoded(item, tensors, shared)) for key, item in content]
            return BUILDERS[name](rows)
        if name == "tensor":
            return tensors[content]
        if name == AGAIN:
            return shared[content]
        if name == SHARED:
            number, inner = content
            shared[number] = _decoded(inner, tensors, shared)
            return shared[number]
        return READERS[name](_decoded(content, tensors, shared))
    except MEANINGLESS as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"a value in it has no meaning: {name}", why=f"{type(error).__name__}: {error}") from error


def _read_dtype(text: Any) -> torch.dtype:
    found = getattr(torch, text)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"{text} is no element type")
    return found


def _defaultdict(rows: list[tuple[Any, Any]]) -> dict[Any, Any]:
    # Its factory is a function, and none is taken from a file; who loads into a defaultdict has one.
    return dict(rows)


MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", defaultdict: "defaultdict", Counter: "counter"}
BUILDERS: dict[str, Callable[[list[tuple[Any, Any]]], Any]] = {
    "dict": dict,
    "ordered": OrderedDict,
    "defaultdict": _defaultdict,
    "counter": lambda rows: Counter(dict(rows)),
}
WRITERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    float: ("float", str),  # those that JSON does not have
    complex: ("complex", lambda number: [number.real, number.imag]),
    tuple: ("tuple", list),
    set: ("set", list),
    frozenset: ("frozenset", list),
    bytes: ("bytes", lambda content: base64.b64encode(content).decode()),
    torch.Size: ("size", list),
    torch.dtype: ("dtype", lambda dtype: str(dtype).removeprefix("torch.")),
    torch.device: ("device", str),
    np.ndarray: ("array", lambda array: torch.from_numpy(np.array(array, order="C"))),
}
READERS: dict[str, Callable[[Any], Any]] = {
    "float": lambda text: SPECIAL_FLOATS[text],
    "complex": lambda parts: complex(*parts),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "size": torch.Size,
    "dtype": _read_dtype,
    "device": torch.device,
    "array": lambda tensor: tensor.numpy(),
}
