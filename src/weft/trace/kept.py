"""Objects that Python code can write to -> as they were before tracing, without the stand-ins it left in them."""

from __future__ import annotations

from types import CellType
from typing import Any

from weft.trace.facts import MISSING, look
from weft.trace.refusals import refuse
from weft.trace.state import Slot, State


class Kept:
    """Remembers what the containers that a state has found hold."""

    def __init__(self, state: State) -> None:
        self._before = {key: (container, _copied(container)) for key, container in state.containers.items()}

    def put_back(self, state: State) -> None:
        """Put back what stood where stand-ins are now."""
        for slot in reversed(state.stand_ins):
            self._put_back(slot)

    def refuse_stand_ins(self, state: State) -> None:
        """The same, and refuse a program that leaves any."""
        self.put_back(state)
        if state.stand_ins:
            refuse("kept tensor", None, detail=state.stand_ins[0].path)

    def _put_back(self, slot: Slot) -> None:
        container = slot.container
        _, before = self._before.get(id(container), (None, MISSING))
        if isinstance(container, CellType):
            _set_cell(container, before)
        elif isinstance(container, list):
            if before is MISSING:
                del container[slot.key]
            else:
                container[:] = before
        elif isinstance(container, dict):
            if before is MISSING or slot.key not in before:
                del container[slot.key]
            else:
                container[slot.key] = before[slot.key]


def _copied(container: Any) -> Any:
    if isinstance(container, CellType):
        return look(container, None)
    return container.copy() if isinstance(container, (dict, list)) else container


def _set_cell(cell: CellType, content: Any) -> None:
    if content is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = content
