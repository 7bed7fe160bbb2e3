"""Lists that traced code appends to -> those of them whose items and length it never looks at.

A hook that appends each batch's features makes a list longer at every call. A program that does no more than append
holds whatever the length; whether it does is seen by tracing it with lists that note what is done with them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from weft.trace.state import Slot, State

READING = """
    len iter getitem setitem delitem contains reversed add radd mul rmul imul eq ne lt le gt ge repr reduce_ex copy
    deepcopy sizeof
"""
OWN = "weft."  # what Weft itself looks at while it traces tells nothing
CHANGING = """
    clear copy count index insert pop popleft appendleft extendleft rotate remove reverse sort
"""


class Noting(list[Any]):
    """A list that notes whether anything was done with it but appending."""

    looked_at = False


class NotingQueue(deque[Any]):
    """The same of a queue."""

    looked_at = False


def _noting(kind: type, name: str) -> Callable[..., Any]:
    def noted(self: Noting | NotingQueue, *arguments: Any, **keywords: Any) -> Any:
        self.looked_at = self.looked_at or not sys._getframe(1).f_globals.get("__name__", "").startswith(OWN)
        return getattr(kind, name)(self, *arguments, **keywords)

    return noted


NOTING: dict[type, type] = {list: Noting, deque: NotingQueue}
for _kind, _notes in NOTING.items():
    for _name in (*(f"__{name}__" for name in READING.split()), *CHANGING.split()):
        if hasattr(_kind, _name):
            setattr(_notes, _name, _noting(_kind, _name))


def may_only_grow(container: Any) -> bool:
    """Whether a container is of a kind that can be watched for what is done with it."""
    return type(container) in NOTING and getattr(container, "maxlen", None) is None


def only_grown(lists: Sequence[Any], state: State, again: Callable[[], bool]) -> list[Any]:
    """The lists that the code only appends to; `again` traces it once more, and tells whether all was as before."""
    notes = [(one, state.places.get(id(one), []), NOTING[type(one)](one), [*one]) for one in lists]
    swapped = [entry for entry in notes if entry[1] and all(map(_may_swap, entry[1]))]
    if not swapped:
        return []
    for _, places, note, _ in swapped:
        for place in places:
            place.put(note)
    try:
        same = again()
    except Exception:  # noqa: BLE001 - whatever noting lists are in the way of; the first trace stands
        same = False
    finally:
        for one, places, _, _ in swapped:
            for place in places:
                place.put(one)
    return [
        one
        for one, _, note, before in swapped
        if same and not note.looked_at and len(one) == len(before) and all(map(is_, one, before))
    ]


def _may_swap(place: Slot) -> bool:
    return not isinstance(place.container, tuple)
