"""Refuse programs that would never do for a second call, because each run changes what the program relies on.

A flag that is set once, a cache that is filled once, places that take turns: a few programs do for all calls. A number
that is counted up and looked at, or a list that grows and is looked at, would need another program at each call. Which
of them it is is seen by tracing the next calls, as far as their effects are known, until a value comes again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from weft.ir.graph import Place
from weft.trace.containers import Touched
from weft.trace.facts import content
from weft.trace.interception.capture import tree_unflatten
from weft.trace.interception.places import is_of_user
from weft.trace.interception.refusals import refuse
from weft.trace.kept import Kept
from weft.trace.outcome import TensorLeaf
from weft.trace.place_numbers import NumberLeaf
from weft.trace.rebound import Rebound
from weft.trace.state import State
from weft.trace.taken_apart import REFERENCES

MOST_NUMBERS = 24  # calls ahead, until a number that is counted has come again
MOST_GROWN = 3  # the same of what gets longer
NUMBERS = (int, float)
TEXTS = (str, bytes)
Effects = tuple[Sequence[Rebound], Sequence[Any]]  # of one trace: what it leaves, the numbers that went in


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
    effects: Effects, touched: Touched, state: State, again: Callable[[], Effects], run: Callable[[], object]
) -> None:
    """Refuse what would never settle; `again` traces the next call, `run` runs the function for its user's line."""
    waiting = [_Restless(entry, [_shown(entry)]) for entry in effects[0] if _may_go_on(entry, touched)]
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
    kept, numbers = effects
    for entry in kept:
        leaves = [leaf.value(numbers) if isinstance(leaf, NumberLeaf) else leaf for leaf in entry.leaves]
        if entry.slot.given is None and not any(isinstance(leaf, (TensorLeaf, *REFERENCES)) for leaf in leaves):
            entry.put(entry.slot.holder(), tree_unflatten(leaves, entry.structure))


def _line_of_change(run: Callable[[], object], entry: Rebound, state: State) -> Place | None:
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
