"""What training keeps in Python (numbers, texts, lists, dictionaries, tensors in them) <-> JSON beside named tensors.

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
DEEPEST = 100
# What Python and PyTorch raise for values that nobody saved, such as a state of the wrong length.
MEANINGLESS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def encode(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Give JSON for a value; its tensors go to `tensors`, named after their place in it."""
    kind = type(value)
    if kind in PLAIN or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, torch.Tensor):
        while place in tensors:  # under the keys 1 and "1" of one dictionary, say
            place += "'"
        tensors[place] = value
        return {"tensor": place}
    if place.count(".") > DEEPEST:
        raise UnsupportedError(f"{place[:80]}... cannot be stored in a checkpoint", why="it nests too deeply")
    if kind is list:
        return [encode(item, f"{place}.{index}", tensors) for index, item in enumerate(value)]
    if kind in MAPPINGS:
        name = MAPPINGS[kind]
        rows = [
            [encode(key, f"{place}.key{index}", tensors), encode(item, _below(place, key, index), tensors)]
            for index, (key, item) in enumerate(value.items())
        ]
        return {name: rows}
    if kind in WRITERS:
        name, write = WRITERS[kind]
        return {name: encode(write(value), place, tensors)}
    if isinstance(value, np.generic):
        return encode(value.item(), place, tensors)
    raise UnsupportedError(
        f"{place} cannot be stored in a checkpoint",
        why=f"it is a {kind.__module__}.{kind.__qualname__}: a checkpoint holds numbers, texts, tensors and lists, "
        "tuples, sets and dictionaries of them, and runs no code when it is read",
        fix="give an object with state_dict() and load_state_dict(), or its plain values",
    )


def _below(place: str, key: Any, index: int) -> str:
    return f"{place}.{key}" if isinstance(key, (str, int)) else f"{place}.{index}"


def decode(data: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Make the value of JSON again; what has no meaning is a UsageError."""
    if isinstance(data, list):
        return [decode(item, tensors) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise UsageError("a value in it has no meaning", why=f"an object with the fields {', '.join(data) or 'none'}")
    ((name, content),) = data.items()
    try:
        if name in BUILDERS:
            return BUILDERS[name]([(decode(key, tensors), decode(item, tensors)) for key, item in content])
        if name == "tensor":
            return tensors[content]
        return READERS[name](decode(content, tensors))
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
