"""Build what a run gives back, and what it puts in Python objects, from its tensors and objects that were there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.programs.rebuild import Build, builder
from weft.trace.python_state.counters import NumberLeaf
from weft.trace.python_state.effects import Rebound
from weft.trace.python_state.trees import REFERENCES, GivenLeaf, HeldLeaf, MadeLeaf, TensorLeaf
from weft.trace.traced import Traced

Places = list[tuple[Rebound, Build]]  # that a run puts tensors in, and what makes of its results what is put there


class Returned:
    """What the runs of one program leave in Python."""

    def __init__(self, traced: Traced) -> None:
        self._leaves = traced.leaves
        self._build = builder(traced.structure)
        self._places = places(traced.kept)
        self._held = traced.held
        self._made = [(leaves, builder(structure)) for leaves, structure in traced.made]
        everything = (*traced.leaves, *(leaf for entry in traced.kept for leaf in entry.leaves))
        self._is_plain = not traced.needs_containers and not any(
            isinstance(leaf, (*REFERENCES, NumberLeaf)) for leaf in everything
        )

    def apply(self, results: Sequence[Any], given: Sequence[Any], numbers: Sequence[Any]) -> Any:
        """Put in Python places what a run keeps there, and give what it returns.

        `given` are the containers among the arguments of its call, `numbers` those that it runs on.
        """
        if self._is_plain:
            keep(self._places, results)
            return self._build(filled(self._leaves, results))
        leaves = _Leaves((results, given, [slot.get() for slot in self._held], numbers), self._made)
        # Where all of them are is looked up before anything is put there: one may be inside of another.
        for entry, container, build in [(entry, entry.slot.holder(given), build) for entry, build in self._places]:
            entry.put(container, build([leaves.of(leaf) for leaf in entry.leaves]))
        return self._build([leaves.of(leaf) for leaf in self._leaves])


class _Leaves:
    """What the leaves of one run stand for."""

    def __init__(self, parts: tuple[Sequence[Any], ...], made: Sequence[Any]) -> None:
        self._results, self._given, self._held, self._numbers = parts
        self._made = made
        self._found: dict[int, Any] = {}

    def of(self, leaf: Any) -> Any:
        """The thing."""
        if isinstance(leaf, TensorLeaf):
            return self._results[leaf.index]
        if isinstance(leaf, GivenLeaf):
            return self._given[leaf.place]
        if isinstance(leaf, HeldLeaf):
            return self._held[leaf.number]
        if isinstance(leaf, NumberLeaf):
            return leaf.value(self._numbers)
        if not isinstance(leaf, MadeLeaf):
            return leaf
        if leaf.number not in self._found:
            inside, build = self._made[leaf.number]
            self._found[leaf.number] = build([self.of(part) for part in inside])
        return self._found[leaf.number]


def places(kept: Sequence[Rebound]) -> Places:
    """The places with what makes of leaves what is put there."""
    return [(entry, builder(entry.structure)) for entry in kept]


def keep(places: Places, results: Sequence[Any]) -> None:
    """Put in Python places what a run keeps there."""
    # Where all of them are is looked up before anything is put there: one may be inside of another.
    for entry, container, build in [(entry, entry.slot.holder(), build) for entry, build in places]:
        entry.put(container, build(filled(entry.leaves, results)))


def filled(leaves: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The leaves with tensors where they name results."""
    return [results[leaf.index] if isinstance(leaf, TensorLeaf) else leaf for leaf in leaves]
