"""What traced code put somewhere in Python -> what a program puts there at each run.

`self.weights = softmax(scores)` keeps the weights for whoever looks at the module later; a forward hook keeps features
in a dictionary or a list; pruning computes a module's weight anew before each forward. As in eager, other tensors are
there after each call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

import torch

from weft.trace.capture import TreeSpec, is_stand_in, tree_flatten
from weft.trace.containers import EVERYTHING, Keys, put
from weft.trace.facts import SIMPLE
from weft.trace.opened import opened
from weft.trace.state import Slot

REFILLED = (list, deque)
Real = Mapping[int, torch.Tensor]
Constant = Callable[[torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Former:
    """What was at a place of a list before the run."""

    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Rebound:
    """A place that gets something new: a tensor, something with tensors in it, a number, or nothing any more.

    Of a list or a queue it is the whole, and the place has no key.
    """

    slot: Slot
    before: Any
    leaves: tuple[Any, ...]
    structure: TreeSpec
    appends: bool = False  # to a list, behind whatever is in it

    @property
    def keys(self) -> Keys:
        """Under which keys of its container it puts things."""
        return EVERYTHING if isinstance(self.slot.container, REFILLED) else frozenset({self.slot.key})

    def count(self) -> float | None:
        """How much is added to a number, if it is one and was one."""
        value = self.leaves[0] if self.structure.is_leaf() else None
        return value - self.before if type(value) in (int, float) and type(self.before) in (int, float) else None

    def described(self, leaves: Iterable[Any]) -> Rebound:
        """The same with leaves that say what a run puts there; a tensor that was there before is let go."""
        before = self.before if type(self.before) in SIMPLE else None
        return replace(self, before=before, leaves=tuple(leaves))

    def put(self, container: Any, value: Any) -> None:
        """Put what a run gives into the container that its place is in now."""
        if self.appends:
            container.extend(value)
        elif isinstance(container, REFILLED):
            former = [*container]
            refill(container, [former[item.place] if type(item) is Former else item for item in value])
        else:
            put(container, self.slot.key, value)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What traced code left in a place, and what was there before; of a list or a queue all that is in it."""

    slot: Slot
    before: Any
    after: Any
    may_be_constant: bool  # a table that is kept for later calls is put there once

    def take_back(self) -> None:
        """Put back what was there before."""
        if isinstance(self.slot.container, REFILLED):
            refill(self.slot.container, self.before)
        else:
            put(self.slot.container, self.slot.key, self.before)

    def settled(self, real: Real, constant: Constant) -> Rebound | None:
        """What each run puts there; None where that is what was there, or what is put there now, once and for all.

        `real` gives the tensor that a stand-in stands for: `self.count += 1` leaves the tensor that was there, and that
        is no change. `constant` computes one that depends on no input: `masks[length] = torch.ones(length).tril()`.
        """
        if isinstance(self.slot.container, REFILLED):
            return self._refilled(real)
        if isinstance(self.before, torch.Tensor) and real.get(id(self.after)) is self.before:
            return None
        computed = constant(self.after) if self.may_be_constant and is_stand_in(self.after) else None
        if computed is not None:
            put(self.slot.container, self.slot.key, computed)
            return None
        leaves, structure = tree_flatten(opened(self.after))
        return Rebound(self.slot, self.before, tuple(leaves), structure)

    def _refilled(self, real: Real) -> Rebound | None:
        # Only what was in it is what it was: any other tensor that a stand-in stands for is another one at each run.
        there = {id(item) for item in self.before}
        known = [(item, real.get(id(item), item)) for item in self.after]
        after = [tensor if id(tensor) in there else item for item, tensor in known]
        if len(after) == len(self.before) and all(map(is_, after, self.before)):
            return None
        if len(after) > len(self.before) and all(map(is_, after, self.before)):
            leaves, structure = tree_flatten(opened(self.after[len(self.before) :]))
            return Rebound(self.slot, None, tuple(leaves), structure, appends=True)
        items = [_former(place, item, self.before) or opened(item) for place, item in enumerate(after)]
        leaves, structure = tree_flatten(items)
        return Rebound(self.slot, None, tuple(leaves), structure)


def _former(place: int, item: Any, before: Sequence[Any]) -> Former | None:
    """Where in a list an item was before, if it was: where it is now, if it was there too."""
    places = [place] if place < len(before) and before[place] is item else range(len(before))
    return next((Former(number) for number in places if before[number] is item), None)


def refill(container: Any, items: Iterable[Any]) -> None:
    """Put other items in a list, a queue or a set."""
    items = [*items]
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(items)
