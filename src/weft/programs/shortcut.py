"""Let a built-in function stand for calls of a loaded program in the common case, with guards for its tensors.

That case is the one of weft.runtime.whole_call: tensors by position go in, one new tensor comes out, no input changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.programs.parts import ProgramParts
from weft.programs.structure import LeafPort
from weft.runtime.back_off import BackOff
from weft.runtime.new_tensors import OutputType
from weft.runtime.steady import Steady, can_watch
from weft.runtime.whole_call import BoundProgram, Given, Likeness, Whole, whole_call

# What gives the run of a graph as it is bound now, where that is one region, given which inputs are arguments.
Bind = Callable[[Sequence[int]], tuple[BoundProgram, tuple[OutputType, ...]] | None]


class Shortcut:
    """Makes the function from time to time, as it is costly to make."""

    def __init__(self, parts: ProgramParts, bind: Bind) -> None:
        self._bind = bind
        self._count = _plain_arguments(parts)
        self._tensors = [entry.tensor for entry in parts.state]
        self._steady = self._watched()
        self._attempts = BackOff()

    def state_is_as_before(self) -> bool:
        """Whether the program's own tensors surely have the sizes and types that they had when last looked at."""
        return self._steady is not None and self._steady.holds()

    def look_again(self) -> None:
        """Take the program's own tensors as they are now for right."""
        self._steady = self._watched()

    def after(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Whole | None:
        """Give what may stand for calls like the one that was just made; None where nothing new does."""
        if self._count != len(arguments) or keywords or self._steady is None or not self._attempts.is_due():
            return None
        found, guards = self._bind(range(self._count)), self._steady.rows()
        if found is None or guards is None or not all(type(given) is torch.Tensor for given in arguments):
            return None
        bound, results = found
        return whole_call(bound, Likeness(guards, arguments, Given(results), kept=self._steady))

    def _watched(self) -> Steady | None:
        return Steady([], self._tensors, []) if can_watch(self._tensors) else None


def _plain_arguments(parts: ProgramParts) -> int | None:
    """How many tensors go in, by position, where nothing else does and one new tensor comes out."""
    nodes: Sequence[Any] = [node for _, node in parts.arguments.positional]
    results = parts.graph.results
    plain = (
        not parts.arguments.keywords
        and nodes == [LeafPort(index) for index in range(len(nodes))]
        and parts.results == LeafPort(0)
        and len(results) == 1
        and results[0].path == ()
        and results[0].value not in parts.graph.inputs
        and not parts.graph.writes
        and parts.memory is None
    )
    return len(nodes) if plain else None
