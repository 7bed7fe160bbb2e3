"""Objects that Python code can write to -> as they were before tracing, without the stand-ins it left in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import is_
from types import CellType
from typing import Any

import torch

from weft.trace.capture import is_stand_in, tree_flatten
from weft.trace.containers import MISSING, Slotted, Touched, class_dictionary, identity, look
from weft.trace.facts import BUFFERS, small_buffer
from weft.trace.opened import opened
from weft.trace.rebound import Rebound, take_back
from weft.trace.refusals import refuse
from weft.trace.state import Slot, State

GROWING = (list, deque, set)


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What tracing had left in objects: the place, the stand-in there, what had been there before."""

    entries: tuple[tuple[Slot, Any, Any], ...]
    nested: tuple[str, ...] = ()  # containers that were given things with stand-ins in them

    def settle(self, real: Mapping[int, torch.Tensor], constant: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Put tensors that are the same at every run where they were kept; refuse a program that keeps another.

        `real` gives the tensor that a stand-in stands for: `self.count += 1` leaves the tensor that was there, and that
        is no change. `constant` computes one that depends on no input: `masks[length] = torch.ones(length).tril()`.
        """
        for path in self.nested:
            refuse("kept tensor", None, detail=path)
        found: list[tuple[Slot, torch.Tensor]] = []
        for slot, stand_in, before in self.entries:
            given = real.get(id(stand_in))
            if given is not None and given is before:
                continue
            computed = None if isinstance(slot.container, list) else constant(stand_in)  # a list may grow at each call
            if computed is None:
                refuse("kept tensor", None, detail=slot.path)
            found.append((slot, computed))
        for slot, computed in found:
            slot.put(computed)


class Kept:
    """Remembers what the containers that a state has found hold."""

    def __init__(self, state: State) -> None:
        self._before = {key: (container, _copied(container)) for key, container in state.containers.items()}
        self._caches = [(cache, cache.cache_info().misses) for cache in state.caches]

    def take_back(self, state: State) -> tuple[Rebound, ...]:
        """Put back what stood in attributes of modules that were given new tensors."""
        return take_back(state.modules, {key: copied for key, (_, copied) in self._before.items()})

    def touched(self) -> Touched:
        """What is different from before in the containers: what the code changed as it was traced."""
        found = Touched()
        for container, before in self._before.values():
            found.add(container, _difference(container, before))
        return found

    def put_back(self, state: State) -> Left:
        """Put back what stood where a state found stand-ins now; clear the caches of functions that may hold some."""
        for cache, misses in self._caches:
            if cache.cache_info().misses != misses:
                cache.cache_clear()
        owners = {id(class_dictionary(kind)): kind for kind in state.classes}
        found = (_emptied(container, before, owners) for container, before in self._before.values())
        nested = tuple(path for path in found if path is not None)
        slots = [slot for slot in reversed(state.stand_ins) if not isinstance(slot.container, tuple)]
        return Left(tuple((slot, slot.get(), self._put_back(slot)) for slot in slots), nested)

    def _put_back(self, slot: Slot) -> Any:
        _, copied = self._before.get(identity(slot.container), (None, None))
        before = MISSING if copied is None else look(copied, slot.key)
        slot.put(before)
        return before


def _difference(container: Any, before: Any) -> frozenset[Any] | None:
    """The keys under which there are other things than before (a closure has one: None); None where a list changed."""
    if isinstance(container, CellType):
        return frozenset() if look(container, None) is look(before, None) else frozenset({None})
    if isinstance(container, BUFFERS):
        return frozenset() if small_buffer(container) == before else None
    if isinstance(container, GROWING):
        same = len(container) == len(before) and all(map(is_, container, before))
        return frozenset() if same else None
    if not isinstance(container, (dict, Slotted)):
        return frozenset()
    names = {**container}.keys() | before.keys()
    return frozenset(name for name in names if look(container, name) is not look(before, name))


def _emptied(container: Any, before: Any, owners: Mapping[int, type]) -> str | None:
    """Put back what a container held, if it was given things with stand-ins in them; tells where."""
    changed = _difference(container, before)
    if changed is None and isinstance(container, GROWING):
        if not _has_stand_in(container, apart=isinstance(container, list)):
            return None
        container.clear()
        fill = container.update if isinstance(container, set) else container.extend
        fill(before)
        return f"a {type(container).__name__}"
    for key in changed or ():
        if _has_stand_in([look(container, key)], apart=True):
            Slot(container, key, "", owner=owners.get(id(container))).put(look(before, key))
            return "a closure" if key is None else f"{key!r} of a dictionary"
    return None


def _has_stand_in(things: Iterable[Any], *, apart: bool) -> bool:
    """Whether there are stand-ins in these things; those that are tensors themselves may count apart."""
    others = [thing for thing in things if not (apart and isinstance(thing, torch.Tensor))]
    return any(map(is_stand_in, tree_flatten(opened(others))[0]))


def _copied(container: Any) -> Any:
    if isinstance(container, CellType):
        found = look(container, None)
        return CellType() if found is MISSING else CellType(found)
    if isinstance(container, (dict, Slotted)):
        return {**container}
    if isinstance(container, BUFFERS):
        return small_buffer(container)
    return [*container] if isinstance(container, GROWING) else container
