"""Remember the user's line at which each guard on numbers was made."""

from __future__ import annotations

from typing import Any

from weft.ir.graph import Place
from weft.trace.interception.user_lines import user_place


class PlacedGuards(list[Any]):
    """The guards of PyTorch's `ShapeEnv`, with a place each."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place | None] = []

    def append(self, guard: Any) -> None:
        """Add a guard, made by the code that runs now."""
        self.places.append(user_place())
        super().append(guard)

    def placed(self) -> list[tuple[Any, Place | None]]:
        """What must hold, as expressions, and where it was decided."""
        return [(guard.expr, place) for guard, place in zip(self, self.places, strict=True)]
