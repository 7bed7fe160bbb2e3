"""A call of a function of PyTorch -> what decides its form: the key, and the tensors and numbers in it."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch

from weft.lazy_tensors.learning import Hole
from weft.lazy_tensors.tensor import LazyTensor
from weft.lazy_tensors.values import PLAIN, look_of

LITERALS = frozenset(
    (type(None), bool, int, str, torch.dtype, torch.device, torch.layout, torch.memory_format, EllipsisType)
)
NUMBERS = frozenset((int, float))


class Refused(Exception):  # noqa: N818  # leaves the search for a call's form; no user ever sees it
    """A call cannot be queued."""


class Call:
    """One call while its form is found: tensors in order, numbers in order, and the key."""

    __slots__ = ("free", "key", "numbers", "tensors")

    def __init__(self, key: list[Any], free: bool) -> None:
        self.key = key
        self.free = free
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []

    def scan(self, item: Any) -> None:
        """Add one argument to the key."""
        kind = item.__class__
        key = self.key
        if kind is LazyTensor:
            value = item.value
            look = value.look if value.real is None else look_of(value.real)
        elif kind in PLAIN:
            look = look_of(item)
        elif kind in NUMBERS and self.free:
            self.numbers.append(item)
            key.append(kind)
            return
        elif kind in LITERALS:
            key.append(kind)
            key.append(item)
            return
        elif kind is float:
            key.append(item.hex())
            return
        else:
            self._scan_many(item, kind)
            return
        if look is None:
            raise Refused
        key.append(look)
        tensors = self.tensors
        for index, other in enumerate(tensors):
            if other is item:
                key.append(index)
                break
        tensors.append(item)

    def _scan_many(self, item: Any, kind: type) -> None:
        if kind is slice:
            item = (item.start, item.stop, item.step)
            if any(isinstance(bound, torch.Tensor) for bound in item):
                raise Refused
        elif kind is not tuple and kind is not list and kind is not torch.Size:
            raise Refused
        self.key.append(kind)
        self.key.append(len(item))
        free, self.free = self.free, False
        for entry in item:
            self.scan(entry)
        self.free = free

    def template(self, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with holes for tensors and numbers; goes the way of `scan`."""
        counts = [0, 0]

        def holes(entry: Any, free: bool) -> Any:
            if isinstance(entry, torch.Tensor):
                counts[0] += 1
                return Hole(counts[0] - 1)
            if free and entry.__class__ in NUMBERS:
                counts[1] += 1
                return Hole(counts[1] - 1, number=True)
            if entry.__class__ in (tuple, list):
                return entry.__class__([holes(inner, False) for inner in entry])
            return entry

        return [holes(entry, self.free) for entry in args], {
            name: holes(entry, self.free) for name, entry in kwargs.items()
        }
