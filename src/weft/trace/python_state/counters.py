"""Take numbers in Python places as inputs of a program, so that one program does for all that code counts there.

`self.steps += 1`, `self.decay *= 0.9` and `cache.position += 1` change at each call what the next one finds. Such a
number goes into the program as it is at each run; what the code made of it is an expression, which each run computes
and puts back. What the code decided by it (`if self.steps % 10 == 0`) is a condition that must hold for the program to
run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.ir.graph import Place
from weft.trace.python_state.containers import MISSING, put
from weft.trace.python_state.effects import REFILLED, Rebound
from weft.trace.python_state.locations import Slot

LARGEST = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class NumberLeaf:
    """What a run computes of its numbers; `places` says of which."""

    function: Callable[..., Any]
    places: tuple[int, ...]
    text: str = ""  # of the function, where it is written as an expression

    @property
    def is_itself(self) -> bool:
        """Whether it is the one number that it is of."""
        names, _, body = self.text.removeprefix("lambda ").partition(": ")
        return len(self.places) == 1 and bool(body) and names == body

    def value(self, numbers: Sequence[Any]) -> Any:
        """The number, of a run with these numbers."""
        return self.function(*[numbers[place] for place in self.places])


def leaf_of_text(text: str, places: tuple[int, ...]) -> NumberLeaf:
    """What a function computes that is written as an expression."""
    return NumberLeaf(eval(text, {"math": math, "torch": torch}), places, text)


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """What must hold of the numbers that a program takes from Python places."""

    test: NumberLeaf
    text: str
    place: Place | None = None  # where it was decided
    is_equality: bool = False  # which hardly ever holds of other numbers

    @classmethod
    def of(cls, test: NumberLeaf, expression: Any) -> Condition:
        """The condition that an expression is."""
        return cls(test, str(expression), is_equality=getattr(expression, "rel_op", None) == "==")

    def holds(self, numbers: Sequence[Any]) -> bool:
        """Whether it does; what cannot be asked of other numbers, a remainder by 0, was not reached with them."""
        try:
            return bool(self.test.value(numbers))
        except ZeroDivisionError:
            return False


def is_countable(thing: Any) -> bool:
    """Whether a thing is a number that a program may take from a place."""
    return (type(thing) is int and -LARGEST < thing < LARGEST) or (type(thing) is float and math.isfinite(thing))


def counted_places(kept: Iterable[Rebound]) -> list[Slot]:
    """The places whose numbers became others."""
    found: list[Slot] = []
    for entry in kept:
        if entry.slot.given is not None or entry.appends:
            continue
        if not entry.refills:
            leaf = entry.leaves[0] if entry.structure.is_leaf() else None
            if _may_count(leaf) and is_countable(entry.before):
                found.append(entry.slot)
        elif isinstance(entry.slot.container, REFILLED):
            found += _counted_items(entry)
    return found


def _counted_items(entry: Rebound) -> list[Slot]:
    """The places of numbers in a list that has as many items as before."""
    items = entry.slot.container
    if entry.structure.num_children != len(items) or entry.structure.num_leaves != len(items):
        return []
    inside = Slot(items, None, entry.slot.path, parent=entry.slot.parent, is_attribute=entry.slot.is_attribute)
    return [
        inside.at(place)
        for place, (leaf, item) in enumerate(zip(entry.leaves, items, strict=True))
        if _may_count(leaf) and is_countable(item)
    ]


def _may_count(leaf: Any) -> bool:
    return isinstance(leaf, NumberLeaf) or is_countable(leaf)


def place_stand_in(slot: Slot, stand_in: Any) -> None:
    """Let traced code find what stands for a number in its place."""
    if slot.owner is None:
        put(slot.container, slot.key, stand_in)
    else:
        slot.put(stand_in)


def number_at(slot: Slot) -> Any:
    """The number that is in a place now; MISSING if there is none that a program may take."""
    found = slot.get()
    return found if is_countable(found) else MISSING


def composed(leaf: Any, leaf_of: Callable[[Any], Any]) -> Any:
    """A number, or a size or a slice made of numbers, as a leaf: `leaf_of` gives those of its numbers."""
    if not isinstance(leaf, (torch.Size, slice)):
        return plain_number(leaf)
    make: Callable[..., Any] = slice if isinstance(leaf, slice) else _size
    parts = tuple(map(leaf_of, (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else leaf))
    if not any(isinstance(part, NumberLeaf) for part in parts):
        return make(*parts)
    places = tuple(sorted({place for part in parts if isinstance(part, NumberLeaf) for place in part.places}))

    def value(*numbers: Any) -> Any:
        known = dict(zip(places, numbers, strict=True))
        return make(
            *[part.function(*map(known.get, part.places)) if isinstance(part, NumberLeaf) else part for part in parts]
        )

    return NumberLeaf(value, places)


def _size(*parts: int) -> torch.Size:
    return torch.Size(parts)


def plain_number(leaf: Any) -> Any:
    """A number that is handed out is a Python number; that it is handed out ties the program to its value."""
    if isinstance(leaf, (torch.SymInt, torch.SymBool)):
        return int(leaf) if isinstance(leaf, torch.SymInt) else bool(leaf)
    return float(leaf) if isinstance(leaf, torch.SymFloat) else leaf
