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

from weft.trace.capture import TreeSpec, is_stand_in
from weft.trace.containers import EVERYTHING, MISSING, Keys, look, put
from weft.trace.facts import SIMPLE
from weft.trace.refusals import refuse
from weft.trace.state import Slot
from weft.trace.taken_apart import TakenApart

REFILLED = (list, deque)
Real = Mapping[int, torch.Tensor]
Constant = Callable[[torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Former:
    """What was at a place of a list, or under a key of a dictionary, before the run."""

    place: Any


@dataclass(frozen=True, slots=True, eq=False)
class Rebound:
    """A place that gets something new: a tensor, something with tensors in it, a number, or nothing any more.

    Where all of a container is new (`refills`), or something is put behind what is in it (`appends`), the place has
    no key.
    """

    slot: Slot
    before: Any
    leaves: tuple[Any, ...]
    structure: TreeSpec
    appends: bool = False  # to a list, behind whatever is in it
    refills: bool = False

    @property
    def keys(self) -> Keys:
        """Under which keys of its container it puts things."""
        return EVERYTHING if self.appends or self.refills else frozenset({self.slot.key})

    def count(self) -> float | None:
        """How much is added to a number, if it is one and was one."""
        value = self.leaves[0] if self.structure.is_leaf() else None
        return value - self.before if type(value) in (int, float) and type(self.before) in (int, float) else None

    def described(self, leaves: Iterable[Any]) -> Rebound:
        """The same with leaves that say what a run puts there; a tensor that was there before is let go."""
        before = self.before if type(self.before) in SIMPLE else None
        slot = self.slot if self.slot.given is None else replace(self.slot, container=None)
        return replace(self, slot=slot, before=before, leaves=tuple(leaves))

    def put(self, container: Any, value: Any) -> None:
        """Put what a run gives into the container that its place is in now."""
        if self.appends:
            container.extend(value)
        elif self.refills:
            if isinstance(container, dict):
                refill(container, [(key, _former_of(container, item)) for key, item in value])
            else:
                refill(container, [_former_of(container, item) for item in value])
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

    def settled(self, real: Real, constant: Constant, apart: TakenApart) -> Rebound | None:
        """What each run puts there; None where that is what was there, or what is put there now, once and for all.

        `real` gives the tensor that a stand-in stands for: `self.count += 1` leaves the tensor that was there, and that
        is no change. `constant` computes one that depends on no input: `masks[length] = torch.ones(length).tril()`.
        """
        if isinstance(self.slot.key, torch.Tensor):
            refuse("kept tensor", None, detail="as a key")
        if self.slot.key is None and isinstance(self.slot.container, REFILLED):
            return self._refilled(real, apart)
        if self.slot.key is None and isinstance(self.after, dict) and isinstance(self.before, dict):
            return self._reordered(apart)
        if isinstance(self.before, torch.Tensor) and real.get(id(self.after)) is self.before:
            return None
        computed = constant(self.after) if self.may_be_constant and is_stand_in(self.after) else None
        if computed is not None:
            put(self.slot.container, self.slot.key, computed)
            return None
        leaves, structure = apart.flatten(self.after)
        return Rebound(self.slot, self.before, tuple(leaves), structure)

    def _refilled(self, real: Real, apart: TakenApart) -> Rebound | None:
        # Only what was in it is what it was: any other tensor that a stand-in stands for is another one at each run.
        there = {id(item) for item in self.before}
        known = [(item, real.get(id(item), item)) for item in self.after]
        after = [tensor if id(tensor) in there else item for item, tensor in known]
        if len(after) == len(self.before) and all(map(is_, after, self.before)):
            return None
        if len(after) > len(self.before) and all(map(is_, after, self.before)):
            leaves, structure = apart.flatten(self.after[len(self.before) :])
            return Rebound(self.slot, None, tuple(leaves), structure, appends=True)
        leaves, structure = apart.flatten([_former(place, item, self.before) for place, item in enumerate(after)])
        return Rebound(self.slot, None, tuple(leaves), structure, refills=True)

    def _reordered(self, apart: TakenApart) -> Rebound:
        """All of a dictionary whose entries have another order."""
        before = self.before
        pairs = [(key, Former(key) if before.get(key, MISSING) is item else item) for key, item in self.after.items()]
        leaves, structure = apart.flatten(pairs)
        return Rebound(self.slot, None, tuple(leaves), structure, refills=True)


def _former(place: int, item: Any, before: Sequence[Any]) -> Any:
    """Where in a list an item was before, if it was: where it is now, if it was there too; else the item."""
    places = [place] if place < len(before) and before[place] is item else range(len(before))
    return next((Former(number) for number in places if before[number] is item), item)


def _former_of(container: Any, item: Any) -> Any:
    return look(container, item.place) if type(item) is Former else item


def refill(container: Any, items: Iterable[Any]) -> None:
    """Put other items in a list, a queue, a set or, as pairs, in a dictionary."""
    items = [*items]
    container.clear()
    (container.update if isinstance(container, (set, dict)) else container.extend)(items)
