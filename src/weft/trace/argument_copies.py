"""Copy the containers among the arguments of a call for a trace, and tell afterwards what the code changed in them.

Traced code gets copies that hold stand-ins, one for each container that was given, however often: `f(batch, batch)` is
given one dictionary. What the code changed in a copy each run of its program changes in the container that has that
place in its own call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any

from weft.trace.argument_containers import can_be_changed, children_of, with_items
from weft.trace.containers import MISSING, look
from weft.trace.rebound import REFILLED, Change, in_same_order
from weft.trace.state import Slot


class ArgumentCopies:
    """Containers that a trace works on, and `leaves` in them; `arguments` and `keywords` are what the code is given.

    What the function also reaches by itself is not copied: it is found by name, and has `own` as identities.
    """

    def __init__(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], leaves: Sequence[Any], own: Mapping[int, Any]
    ) -> None:
        self._leaves = iter(leaves)
        self._own = own
        self._count = 0
        self._copies: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}  # of copies, by identity: the place of the container
        self._entries: list[tuple[int, Any, Any]] = []  # the place, the copy, what was in it
        self.arguments = tuple(map(self._copied, arguments))
        self.keywords = {name: self._copied(argument) for name, argument in keywords.items()}

    def _copied(self, thing: Any) -> Any:
        children = children_of(thing)
        if children is None:
            return next(self._leaves)
        place, self._count = self._count, self._count + 1
        items = [self._copied(child) for child in children]  # leaves are counted of each place
        if id(thing) in self._own:
            return thing
        if id(thing) in self._copies:
            return self._copies[id(thing)]
        copied = with_items(thing, items)
        self.numbers[id(copied)] = place
        self._entries.append((place, copied, _content(copied)))
        if can_be_changed(thing):
            self._copies[id(thing)] = copied
        return copied

    def changes(self) -> Iterator[Change]:
        """What the code changed in the containers."""
        for place, copied, (items, own) in self._entries:
            if isinstance(copied, REFILLED):
                if len(copied) != len(items) or not all(map(is_, copied, items)):
                    yield Change(
                        Slot(copied, None, "an argument", given=place), items, [*copied], may_be_constant=False
                    )
            elif isinstance(copied, dict):
                yield from dictionary_changes(Slot(copied, None, "an argument", given=place), items)
            if own is not None:
                slot = Slot(vars(copied), None, "an argument", given=place, is_attribute=True)
                yield from dictionary_changes(slot, own)


def dictionary_changes(slot: Slot, before: dict[Any, Any]) -> Iterator[Change]:
    """What is different in a dictionary: its entries, or all of it where they have another order."""
    now = slot.container
    if not in_same_order(now, before):
        yield Change(slot, before, {**now}, may_be_constant=False)
        return
    gone = (key for key in before if key not in now)
    for key in (*now, *gone):
        found, earlier = look(now, key), before.get(key, MISSING)
        if found is not earlier:
            yield Change(slot.at(key), earlier, found, may_be_constant=False)


def _content(copied: Any) -> tuple[Any, dict[str, Any] | None]:
    """The items of a copy, and its attributes where it has some."""
    items = [*copied] if isinstance(copied, REFILLED) else dict(copied.items()) if isinstance(copied, dict) else None
    return items, {**vars(copied)} if hasattr(copied, "__dict__") else None
