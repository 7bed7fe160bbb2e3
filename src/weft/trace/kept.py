"""Put objects that Python code can write to back to what they were before a trace, and tell what it changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from types import CellType
from typing import Any

import torch

from weft.trace.containers import MISSING, Slotted, Touched, class_dictionary, identity, look
from weft.trace.facts import APART, BUFFERS, buffer_of
from weft.trace.interception.capture import is_stand_in, tree_flatten
from weft.trace.interception.refusals import refuse
from weft.trace.opened import has_stand_in, opened
from weft.trace.rebound import REFILLED, Change, Constant, Real, in_same_order, refill
from weft.trace.state import Slot, State

GROWING = (*REFILLED, set)
OF_PYTHON = frozenset({"__warningregistry__", "__builtins__"})  # what Python itself puts among global names


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What tracing had left in objects: the place, the stand-in there, what had been there before."""

    entries: tuple[tuple[Slot, Any, Any], ...]
    nested: tuple[str, ...] = ()  # containers that were given things with stand-ins in them

    def settle(self, real: Real, constant: Constant) -> None:
        """Put tensors that are the same at every run where they were kept; refuse a program that keeps another.

        See `Change.settled` for what `real` and `constant` are.
        """
        for path in self.nested:
            refuse("kept tensor", None, detail=path)
        found: list[tuple[Slot, torch.Tensor]] = []
        for slot, stand_in, before in self.entries:
            given = real.get(id(stand_in))
            if given is not None and given is before:
                continue
            computed = constant(stand_in)
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

    def take_back(self, state: State) -> list[Change]:
        """Find what has changed, and put back what was there."""
        owners = {id(class_dictionary(kind)): kind for kind in state.classes}
        kinds = {id(module.__dict__): "module" for module in state.modules}
        kinds |= {id(module.__dict__["_buffers"]): "buffers" for module in state.modules}
        kinds |= {id(module.__dict__["_parameters"]): "parameters" for module in state.modules}
        found: list[Change] = []
        for container, before in self._before.values():
            kind = kinds.get(id(container), "class" if id(container) in owners else "")
            if kind == "parameters":
                continue  # these are refused
            place = partial(_place, state, container, owners.get(id(container)))
            for change in _changes(place, before, kind):
                found.append(change)
                change.take_back()
        return found

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


def _place(state: State, container: Any, owner: type | None, key: Any) -> Slot:
    return replace(state.inside(container, key), owner=owner)


def _changes(place: Callable[[Any], Slot], before: Any, kind: str) -> Iterator[Change]:
    """What has changed in a container; of which `kind` of object it holds the attributes, if it does."""
    slot = place(None)
    container, changed = slot.container, _difference(slot.container, before)
    if isinstance(container, (*GROWING, *BUFFERS)):
        if changed is None:
            yield Change(slot, before, _copied(container), may_be_constant=False)
        return
    is_free = isinstance(container, dict) and not kind and _are_all_kept(container)
    if is_free and not in_same_order(container, before):
        yield Change(slot, before, {**container}, may_be_constant=False)
        return
    for key in _ordered(container, changed or ()):
        now, earlier = look(container, key), look(before, key)
        if (kind == "module" and key in APART) or key in OF_PYTHON or isinstance(now, Iterator):
            continue
        if kind == "class" and (_holds_tensor(now) or _holds_tensor(earlier)):
            continue  # these are refused
        yield Change(place(key), earlier, now, may_be_constant=not kind)


def _are_all_kept(container: dict[Any, Any]) -> bool:
    return not (OF_PYTHON & container.keys()) and not any(isinstance(item, Iterator) for item in container.values())


def _ordered(container: Any, keys: Collection[Any]) -> list[Any]:
    """Keys in the order in which a container has them."""
    if not isinstance(container, dict):
        return list(keys)
    there = [key for key in dict.keys(container) if key in keys]
    return [*there, *(key for key in keys if key not in container)]


def _holds_tensor(thing: Any) -> bool:
    """Whether a thing is or holds tensors, or stand-ins of them."""
    leaves = tree_flatten(thing)[0]
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves) or has_stand_in(leaves)


def _difference(container: Any, before: Any) -> frozenset[Any] | None:
    """The keys under which there are other things than before (a closure has one: None); None where a list changed."""
    if isinstance(container, CellType):
        return frozenset() if look(container, None) is look(before, None) else frozenset({None})
    if isinstance(container, BUFFERS):
        return frozenset() if before is None or buffer_of(container) == before else None
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
        refill(container, before)
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
        return buffer_of(container)
    return [*container] if isinstance(container, GROWING) else container
