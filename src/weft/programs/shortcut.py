"""Make the entry of a loaded program's calls, and watch the program's own tensors.

Programs that are native from end to end have one: tensors by position go in, one new tensor comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.guards.back_off import BackOff
from weft.guards.entry import Entry, Ways, bound_run, make_entry, refuse_all
from weft.guards.guarded import NewResults, TakenLeaves
from weft.guards.likeness import CallItems, likeness_of
from weft.guards.words import Words, can_watch
from weft.programs.parts import ProgramParts
from weft.programs.structure import LeafPort
from weft.runtime.binding import BoundProgram
from weft.runtime.new_tensors import OutputType

# What gives the run of a graph as it is bound now, where that is one region, given which inputs are arguments.
Bind = Callable[[Sequence[int]], tuple[BoundProgram, tuple[OutputType, ...]] | None]


class Shortcut:
    """Makes the entry from time to time, as it is costly to make."""

    def __init__(self, parts: ProgramParts, bind: Bind) -> None:
        self._bind = bind
        self._count = _plain_arguments(parts)
        self._tensors = [entry.tensor for entry in parts.state]
        self._words = self._watched()
        self._attempts = BackOff()

    def state_is_as_before(self) -> bool:
        """Whether the program's own tensors surely have the sizes and types that they had when last looked at."""
        return self._words is not None and self._words.hold()

    def look_again(self) -> None:
        """Take the program's own tensors as they are now for right."""
        self._words = self._watched()

    def after(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Entry | None:
        """Give the entry of calls like the one that was just made; None where nothing new does."""
        if self._count != len(arguments) or keywords or self._words is None or not self._attempts.is_due():
            return None
        found = self._bind(range(self._count))
        likeness = likeness_of(CallItems(arguments, {}))
        if found is None or likeness is None or not likeness.is_all_words or not self._words.are_all:
            return None
        program, types = found
        told = self._words.told(())
        run = bound_run((program, NewResults(types)), told)
        ways = Ways([told], refuse_all, refuse_all)
        return None if run is None else make_entry(likeness, TakenLeaves(range(self._count)), ways, [run.state])

    def _watched(self) -> Words | None:
        return Words([], self._tensors) if can_watch(self._tensors) else None


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
