"""Trace again to tell which changes of Python objects would need another program at each call.

A hook that appends each batch's features makes a list longer at every call. A program that does no more than append
holds whatever the length; whether it does is seen by tracing it with lists that note what is done with them.

A flag that is set once, a cache that is filled once, places that take turns: a few programs do for all calls. A number
that is counted up and looked at, or a list that grows and is looked at, would need another program at each call. Which
of them it is is seen by tracing the next calls, as far as their effects are known, until a value comes again.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from types import FrameType
from typing import Any

from weft.errors import InternalError
from weft.ir.graph import Place
from weft.trace.interception import builtin_names
from weft.trace.interception.capture import tree_unflatten
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import is_of_user
from weft.trace.python_state.containers import Touched
from weft.trace.python_state.counters import NumberLeaf
from weft.trace.python_state.effects import Kept, Rebound
from weft.trace.python_state.facts import content
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.reachable import PythonState
from weft.trace.python_state.trees import REFERENCES, TensorLeaf

READING = """
    len iter getitem setitem delitem contains reversed add radd mul rmul imul eq ne lt le gt ge repr reduce_ex copy
    deepcopy sizeof
"""
# What Weft itself looks at while it traces tells nothing, but for what stands for builtins that code calls.
OWN = "weft."
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
        asks = sys._getframe(1).f_globals.get("__name__", "")
        self.looked_at = self.looked_at or asks == builtin_names.__name__ or not asks.startswith(OWN)
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


def only_grown(lists: Sequence[Any], state: PythonState, again: Callable[[], bool]) -> list[Any]:
    """The lists that the code only appends to; `again` traces it once more, and tells whether all was as before."""
    every = {id(one): one for one in lists}.values()  # a forward and its backward may append to one list
    notes = [(one, state.places.get(id(one), []), NOTING[type(one)](one), [*one]) for one in every]
    swapped = [entry for entry in notes if entry[1] and all(map(_may_swap, entry[1]))]
    if not swapped:
        return []
    for _, places, note, _ in swapped:
        for place in places:
            place.put(note)
    try:
        same = again()
    except (InternalError, MemoryError):
        raise
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


MOST_NUMBERS = 24  # calls ahead, until a number that is counted has come again
MOST_GROWN = 3  # the same of what gets longer
NUMBERS = (int, float)
TEXTS = (str, bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """What one trace leaves in Python at each run, and the numbers that went in."""

    kept: Sequence[Rebound]
    numbers: Sequence[Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Restless:
    """A place that a run changes and a program relies on, and what has been there at the calls so far."""

    entry: Rebound
    seen: list[Any]

    def is_new(self) -> bool:
        """Whether there is now what has not been there before; it is noted."""
        now = _shown(self.entry)
        if now in self.seen:
            return False
        self.seen.append(now)
        return True


def refuse_restless(
    effects: Effects, touched: Touched, state: PythonState, again: Callable[[], Effects], run: Callable[[], object]
) -> None:
    """Refuse what would never settle; `again` traces the next call, `run` runs the function for its user's line."""
    waiting = [_Restless(entry, [_shown(entry)]) for entry in effects.kept if _may_go_on(entry, touched)]
    if not waiting:
        return
    kept = Kept(state)
    limit = MOST_NUMBERS if all(_is_number(item.entry) for item in waiting) else MOST_GROWN
    try:
        for _ in range(limit):
            _apply(effects)
            waiting = [item for item in waiting if item.is_new()]
            if not waiting:
                return
            try:
                effects = again()
            except (InternalError, MemoryError):
                raise
            except Exception:  # noqa: BLE001 - the calls come to an end there, as in eager
                return
    finally:
        kept.take_back(state)
    place = _line_of_change(run, waiting[0].entry, state)
    refuse("counter" if _is_number(waiting[0].entry) else "growing", place, detail=waiting[0].entry.slot.path)


def _may_go_on(entry: Rebound, touched: Touched) -> bool:
    """Whether the next run may change it to something else again, and something new each time."""
    container = entry.slot.container
    if entry.slot.given is not None or any(isinstance(leaf, (TensorLeaf, *REFERENCES)) for leaf in entry.leaves):
        return False
    if any(isinstance(leaf, NumberLeaf) for leaf in entry.leaves):
        return False
    if entry.appends or entry.refills:
        return touched.keys(container) is not None and not isinstance(container, dict)
    value = entry.leaves[0] if entry.structure.is_leaf() else None
    if type(value) in NUMBERS:
        return type(entry.before) in NUMBERS
    return isinstance(value, TEXTS) and type(entry.before) is type(value) and len(value) > len(entry.before)


def _is_number(entry: Rebound) -> bool:
    return not (entry.appends or entry.refills) and type(entry.before) in NUMBERS


def _shown(entry: Rebound) -> Any:
    """What is in a place now, as it is compared."""
    slot = entry.slot
    return content(slot.container if entry.appends or entry.refills else slot.get())


def _apply(effects: Effects) -> None:
    """Do what a run would do, apart from its tensors."""
    for entry in effects.kept:
        leaves = [leaf.value(effects.numbers) if isinstance(leaf, NumberLeaf) else leaf for leaf in entry.leaves]
        if entry.slot.given is None and not any(isinstance(leaf, (TensorLeaf, *REFERENCES)) for leaf in leaves):
            entry.put(entry.slot.holder(), tree_unflatten(leaves, entry.structure))


def _line_of_change(run: Callable[[], object], entry: Rebound, state: PythonState) -> Place | None:
    """The line of the user's code that changes a place."""
    before, found, last = _shown(entry), list[Place](), list[Place]()
    outer = sys.gettrace()

    def look(frame: FrameType, _event: str, _argument: Any) -> Any:
        if last and not found and _shown(entry) != before:
            found.append(last[-1])
        if is_of_user(frame):
            last.append(Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        return look

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return look if is_of_user(frame) and event == "call" and argument is None else None

    kept = Kept(state)
    sys.settrace(enter)
    try:
        run()
    except Exception:  # noqa: BLE001 - the line is all that is wanted
        pass
    finally:
        sys.settrace(outer)
        kept.take_back(state)
    return found[0] if found else last[-1] if last else None
