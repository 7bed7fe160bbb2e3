"""Take what traced code leaves apart: tensors, plain values, and references to objects that were there before.

What a run gives back, and what it puts in Python objects, is built anew from the tensors of that run. Objects that the
code only passes on are not built: a container among the arguments is the one of that call, one that the function
reaches by itself is the one that is in its place then. A new object that is left in two places is made once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from weft.trace.argument_containers import children_of
from weft.trace.containers import attributes, has_attributes
from weft.trace.facts import SIMPLE, WHOLE
from weft.trace.interception.capture import TreeSpec, tree_flatten
from weft.trace.opened import has_stand_in, opened
from weft.trace.state import Slot, State


@dataclass(frozen=True, slots=True)
class GivenLeaf:
    """A container among the arguments of the call."""

    place: int


@dataclass(frozen=True, slots=True)
class HeldLeaf:
    """What a place that the function reaches by itself held before the run."""

    number: int


@dataclass(frozen=True, slots=True)
class MadeLeaf:
    """An object that a run makes once, and leaves in several places."""

    number: int


REFERENCES = (GivenLeaf, HeldLeaf, MadeLeaf)


def is_size(leaf: Any) -> bool:
    """Whether a returned object is a tensor's size, which a tree of results would give back as a plain tuple."""
    return isinstance(leaf, torch.Size)


class TakenApart:
    """Takes `trees` apart, all that one trace leaves.

    Objects of `state` were there before, and so were containers among the arguments: `given` has the place of each.
    """

    def __init__(
        self, trees: Iterable[Any] = (), state: State | None = None, given: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self._trees = (*trees,)  # objects are told apart by identity, which lasts as long as they do
        self._given = given
        self._state = state or State()
        self.held: list[Slot] = []
        self.made: list[tuple[list[Any], TreeSpec]] = []
        self._references: dict[int, Any] = {}
        counts: Counter[int] = Counter()
        for tree in self._trees:
            self._count(tree, counts)
        self._shared = {key for key, count in counts.items() if count > 1}

    def flatten(self, tree: Any) -> tuple[list[Any], TreeSpec]:
        """The leaves of a tree, references among them, and how they nest."""
        return self._flatten(tree, None)

    def _flatten(self, tree: Any, root: Any) -> tuple[list[Any], TreeSpec]:
        def stops(node: Any) -> bool:
            return is_size(node) or self._is_known(node) or (id(node) in self._shared and node is not root)

        leaves, structure = tree_flatten(opened(tree, stops), is_leaf=stops)
        return [leaf if leaf is root else self._leaf(leaf) for leaf in leaves], structure

    def _is_known(self, node: Any) -> bool:
        return id(node) in self._given or id(node) in self._state.homes or id(node) in self._state.visited

    def _leaf(self, leaf: Any) -> Any:
        key = id(leaf)
        if key in self._given:
            return GivenLeaf(self._given[key])
        if key not in self._references:
            slot, of_object = self._state.homes.get(key, (None, True))
            if slot is not None and not of_object:
                self._references[key] = HeldLeaf(len(self.held))
                self.held.append(slot)
            elif key in self._shared and not self._is_known(leaf):
                self._references[key] = MadeLeaf(len(self.made))
                self.made.append(([], None))  # type: ignore[arg-type]  # what is inside may be numbered first
                self.made[self._references[key].number] = self._flatten(leaf, leaf)
            else:
                return leaf
        return self._references[key]

    def _count(self, thing: Any, counts: Counter[int]) -> None:
        if isinstance(thing, (*SIMPLE, *WHOLE, torch.Tensor, torch.Size)) or self._is_known(thing):
            return
        children = children_of(thing)
        if children is None:
            if callable(thing) or not has_attributes(thing) or not has_stand_in([thing]):
                return
            children = list(attributes(thing).values())
        counts[id(thing)] += 1
        if counts[id(thing)] == 1:
            for child in children:
                self._count(child, counts)
