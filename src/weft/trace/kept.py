"""Objects that Python code can write to -> as they were before tracing, without the stand-ins it left in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CellType
from typing import Any

import torch

from weft.trace.facts import MISSING, look
from weft.trace.rebound import Rebound, take_back
from weft.trace.refusals import refuse
from weft.trace.state import Slot, State


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What tracing had left in objects: the place, the stand-in there, what had been there before."""

    entries: tuple[tuple[Slot, Any, Any], ...]

    def refuse(self, real: Mapping[int, torch.Tensor]) -> None:
        """Refuse a program that leaves a tensor anywhere; `real` gives the tensor that a stand-in stands for.

        `self.count += 1` leaves the tensor that was there: that is no change.
        """
        for slot, stand_in, before in self.entries:
            found = real.get(id(stand_in))
            if found is None or found is not before:
                refuse("kept tensor", None, detail=slot.path)


class Kept:
    """Remembers what the containers that a state has found hold."""

    def __init__(self, state: State) -> None:
        self._before = {key: (container, _copied(container)) for key, container in state.containers.items()}

    def take_back(self, state: State) -> tuple[Rebound, ...]:
        """Put back what stood in attributes of modules that were given new tensors."""
        return take_back(state.modules, {key: copied for key, (_, copied) in self._before.items()})

    def put_back(self, state: State) -> Left:
        """Put back what stood where a state found stand-ins now."""
        return Left(tuple((slot, slot.get(), self._put_back(slot)) for slot in reversed(state.stand_ins)))

    def _put_back(self, slot: Slot) -> Any:
        container, key = slot.container, slot.key
        _, copied = self._before.get(id(container), (None, None))
        if isinstance(container, CellType):
            before = MISSING if copied is None else look(copied, None)
            _set_cell(container, before)
            return before
        before = MISSING if copied is None else look(copied, key)
        if before is MISSING:
            del container[key]
        else:
            container[key] = before
        return before


def _copied(container: Any) -> Any:
    if isinstance(container, CellType):
        found = look(container, None)
        return CellType() if found is MISSING else CellType(found)
    return container.copy() if isinstance(container, (dict, list)) else container


def _set_cell(cell: CellType, content: Any) -> None:
    if content is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = content
