"""Tell where it shows that what code reads of a place is a copy, which in eager is a view of it.

It shows where the copy is written, and where it is used, or handed on, after the tensor that it is of was written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from weft.ir.graph import Place, Value
from weft.ir.library import is_view
from weft.trace.interception.capture import storage_key
from weft.trace.recorder import Recorder


@dataclass(frozen=True, slots=True, eq=False)
class Copied:
    """A copy that was read: of what the tensor held then, and by which items of an index."""

    copy: torch.Tensor
    value: Value
    source: torch.Tensor
    held: Value
    items: tuple[Any, ...]
    place: Place | None

    def shows(self, recorder: Recorder, handed_on: Collection[int]) -> bool:
        """Whether code shows that it is no view; `handed_on` is the memory of what the program gives."""
        return bool(recorder.state_of(self.copy).memory.version) or self._is_stale(recorder.values, handed_on)

    def _is_stale(self, values: list[Value], handed_on: Collection[int]) -> bool:
        """Whether it is read after what it was read of has been written."""
        written = next((at for at, one in enumerate(values) if one.op == "update" and self.held in one.operands), None)
        if written is None:
            return False
        if storage_key(self.copy) in handed_on:
            return True
        aliases = {self.value}
        for at, value in enumerate(values):
            if aliases.isdisjoint(value.operands):
                continue
            if at > written:
                return True
            if value.op == "library" and is_view(value.attributes["call"].target):
                aliases.add(value)
        return False


def copied_of(copy: torch.Tensor, source: torch.Tensor, items: tuple[Any, ...], recorder: Recorder) -> Copied:
    """A copy that is read now."""
    held = recorder.state_of(source).memory.base
    return Copied(copy, recorder.value_of(copy), source, held, items, recorder.place())
