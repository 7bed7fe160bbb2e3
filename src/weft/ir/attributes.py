"""The kinds of attributes that ops have, each with the check of a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from weft.ir.calls import Call


def is_integer(value: Any) -> bool:
    """Whether this is an integer; True and False are not."""
    return type(value) is int


def is_number(value: Any) -> bool:
    """Whether this is a Python number."""
    return type(value) in (bool, int, float, complex)


KINDS: dict[str, Callable[[Any], bool]] = {
    "integer": is_integer,
    "integer or None": lambda value: value is None or is_integer(value),
    "integers": lambda value: type(value) is tuple and all(map(is_integer, value)),
    "number": is_number,
    "truth": lambda value: type(value) is bool,
    "text": lambda value: type(value) is str,
    "arguments": lambda value: type(value) is tuple,
    "dtype": lambda value: isinstance(value, torch.dtype),
    "device": lambda value: isinstance(value, torch.device),
    "tensor": lambda value: isinstance(value, torch.Tensor),
    "call": lambda value: isinstance(value, Call),
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an op: its name and the kind of its value."""

    name: str
    kind: str

    def accepts(self, value: Any) -> bool:
        """Whether a value is of this attribute's kind."""
        return KINDS[self.kind](value)


def attributes(**kinds: str) -> tuple[Attribute, ...]:
    """Describe attributes by keywords: the name and, with _ for spaces, the kind."""
    return tuple(Attribute(name, kind.replace("_", " ")) for name, kind in kinds.items())
