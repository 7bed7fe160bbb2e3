"""Name places that hold things: entries of dictionaries and lists, cells of closures; and put other things there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from weft.trace.python_state.containers import MISSING, Touched, attributes, has_attributes, identity, look, put


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A place that holds a tensor: an entry of a dictionary or list, or a closure's cell.

    One inside of what another place holds is looked for there: runs may put other things in that place.
    """

    container: Any
    key: Any
    path: str
    registered: bool = False
    owner: type | None = None  # the class whose attributes the dictionary is
    parent: Slot | None = None
    is_attribute: bool = False  # of what the parent holds, or was given; else an item of it
    given: int | None = None  # it is in a container among the arguments of each call, the one with this number

    def get(self) -> Any:
        """What is there now: a tensor, unless somebody put something else there."""
        return look(self.holder(), self.key)

    def at(self, key: Any) -> Slot:
        """Another place in the same container."""
        return replace(self, key=key, path=f"{key!r} of {self.path}")

    def is_at(self, other: Slot) -> bool:
        """Whether it is the same place."""
        return identity(self.container) == identity(other.container) and bool(self.key == other.key)

    def holder(self, given: Sequence[Any] = ()) -> Any:
        """What this place is in now, in a call with these containers among its arguments."""
        if self.given is not None:
            return attributes(given[self.given]) if self.is_attribute else given[self.given]
        if self.parent is None:
            return self.container
        held = self.parent.get()
        return attributes(held) if self.is_attribute and has_attributes(held) else held

    def chain(self) -> list[Slot]:
        """The places from this one out."""
        return [self, *(self.parent.chain() if self.parent is not None else ())]

    def moves(self, touched: Touched) -> bool:
        """Whether runs put other things here, or in a place that this one is inside of."""
        return any(slot.key in touched.given(slot.container) for slot in self.chain())

    def let_go(self, touched: Touched) -> Slot:
        """The same without what is inside of places that runs give other things."""
        if self.parent is None or not self.parent.moves(touched):
            return self
        return replace(self, container=None, parent=self.parent.let_go(touched))

    def outermost(self) -> Slot | None:
        """The place that others can be put in: this one, or what holds its tuple; None if there is none."""
        if not isinstance(self.container, tuple):
            return self
        return None if self.parent is None else self.parent.outermost()

    def put_inside(self, thing: Any) -> None:
        """Put something there, where need be with another tuple around it, if there is a place for that."""
        if not isinstance(self.container, tuple):
            self.put(thing)
        elif self.parent is not None and isinstance(held := self.parent.get(), tuple):
            items = [*held[: self.key], thing, *held[self.key + 1 :]]
            self.parent.put_inside(tuple.__new__(type(held), items))

    def put(self, thing: Any) -> None:
        """Put something where the walk found this place; MISSING is nothing."""
        if self.owner is None:
            put(self.container, self.key, thing)
        # Through the class: it has to know that an attribute has changed.
        elif thing is MISSING:
            delattr(self.owner, self.key)
        else:
            setattr(self.owner, self.key, thing)


@contextmanager
def standing_in(things: Iterable[tuple[Slot, Any]]) -> Iterator[None]:
    """While entered, other things are in these places, with other tuples around them where need be."""
    before: list[tuple[Slot, Any]] = []
    try:
        for slot, thing in things:
            outer = slot.outermost()
            if outer is not None and (held := outer.get()) is not MISSING:
                before.append((outer, held))
                slot.put_inside(thing)
        yield
    finally:
        for outer, held in reversed(before):
            outer.put(held)
