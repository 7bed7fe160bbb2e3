"""What traced code put somewhere in Python -> what a program puts there at each run.

`self.weights = softmax(scores)` keeps the weights for whoever looks at the module later; a forward hook keeps features
in a dictionary or a list; pruning computes a module's weight anew before each forward. As in eager, other tensors are
there after each call.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

import numpy as np
import torch

from weft.trace.containers import EVERYTHING, MISSING, Keys, identity, look, put
from weft.trace.facts import BUFFERS, SIMPLE
from weft.trace.interception.capture import TreeSpec, is_stand_in, tree_flatten
from weft.trace.interception.refusals import refuse
from weft.trace.opened import has_stand_in
from weft.trace.state import Slot
from weft.trace.taken_apart import TakenApart

REFILLED = (list, deque)
LEAF = tree_flatten(None)[1]
Real = Mapping[int, Any]
Constant = Callable[[torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Former:
    """What was at a place of a list, or under a key of a dictionary, before the run."""

    place: Any


@dataclass(frozen=True, slots=True)
class OwnNumber:
    """What stands for the number that has been in a place: under a key of a container."""

    container: int
    key: Any


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
        if self.slot.owner is not None:
            self.slot.put(value)
        elif self.appends:
            container.extend(value)
        elif self.refills:
            if isinstance(container, BUFFERS):
                refill(container, value)
            elif isinstance(container, dict):
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
        if self.is_whole:
            refill(self.slot.container, self.before)
        else:
            self.slot.put(self.before)

    @property
    def is_whole(self) -> bool:
        """Whether it is about all of a container, and not about one place in it."""
        return self.slot.key is None and isinstance(self.slot.container, (dict, *REFILLED, set, *BUFFERS))

    def settled(self, real: Real, constant: Constant, apart: TakenApart) -> Rebound | None:
        """What each run puts there; None where that is what was there, or what is put there now, once and for all.

        `real` gives the tensor that a stand-in stands for: `self.count += 1` leaves the tensor that was there, and that
        is no change; of a number's stand-in it is an OwnNumber. `constant` computes one that depends on no input:
        `masks[length] = torch.ones(length).tril()`.
        """
        if isinstance(self.slot.key, torch.Tensor):
            refuse("kept tensor", None, detail="as a key")
        if self.is_whole and isinstance(self.slot.container, REFILLED):
            return self._refilled(real, apart)
        if self.is_whole:
            return self._whole(apart)
        if self._is_own(self.after, self.slot.key, real) or real.get(id(self.after)) is self.before is not None:
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
        after = [
            self.before[place]
            if self._is_own(item, place, real)
            else tensor
            if id(tensor) in there and type(tensor) is not OwnNumber
            else item
            for place, (item, tensor) in enumerate(known)
        ]
        if len(after) == len(self.before) and all(map(is_, after, self.before)):
            return None
        if len(after) > len(self.before) and all(map(is_, after, self.before)):
            leaves, structure = apart.flatten(self.after[len(self.before) :])
            return Rebound(self.slot, None, tuple(leaves), structure, appends=True)
        leaves, structure = apart.flatten([_former(place, item, self.before) for place, item in enumerate(after)])
        return Rebound(self.slot, None, tuple(leaves), structure, refills=True)

    def _is_own(self, item: Any, key: Any, real: Real) -> bool:
        """Whether this is the number that has been in this very place."""
        found = real.get(id(item))
        return type(found) is OwnNumber and found == OwnNumber(identity(self.slot.container), key)

    def _whole(self, apart: TakenApart) -> Rebound:
        """All of a dictionary whose entries have another order, of a set, or of an array of numbers."""
        items: Any = self.after
        if isinstance(self.after, dict):
            before = self.before
            items = [(key, Former(key) if before.get(key, MISSING) is item else item) for key, item in items.items()]
        elif isinstance(self.slot.container, set) and has_stand_in(items):
            refuse("kept tensor", None, detail="a set")
        elif isinstance(self.slot.container, BUFFERS):
            return Rebound(self.slot, None, (items,), LEAF, refills=True)
        leaves, structure = apart.flatten(items)
        return Rebound(self.slot, None, tuple(leaves), structure, refills=True)


def _former(place: int, item: Any, before: Sequence[Any]) -> Any:
    """Where in a list an item was before, if it was: where it is now, if it was there too; else the item."""
    if type(item) in SIMPLE:
        return item  # equal numbers are one object, wherever they come from
    places = [place] if place < len(before) and before[place] is item else range(len(before))
    return next((Former(number) for number in places if before[number] is item), item)


def _former_of(container: Any, item: Any) -> Any:
    return look(container, item.place) if type(item) is Former else item


def in_same_order(now: Mapping[Any, Any], before: Mapping[Any, Any]) -> bool:
    """Whether what was in a dictionary before comes first, in the order that it had."""
    return list(now) == [*(key for key in before if key in now), *(key for key in now if key not in before)]


def refill(container: Any, items: Any) -> None:
    """Put other items in a list, a queue, a set or, as pairs, in a dictionary; in an array a shape and bytes."""
    if isinstance(container, BUFFERS):
        _, content = items
        if isinstance(container, np.ndarray):
            container[...] = np.frombuffer(content, container.dtype).reshape(container.shape)
        elif isinstance(container, array):
            container[:] = array(container.typecode, content)
        else:
            container[:] = content
        return
    items = [*(items.items() if isinstance(items, dict) else items)]
    container.clear()
    (container.update if isinstance(container, (set, dict)) else container.extend)(items)
