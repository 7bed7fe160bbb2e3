"""Put Python objects back to what they were before a trace, and tell what each run of its program changes in them.

`self.weights = softmax(scores)` keeps the weights for whoever looks at the module later; a forward hook keeps features
in a dictionary or a list; pruning computes a module's weight anew before each forward. As in eager, other tensors are
there after each call.

Containers among the arguments are copied for the trace, one copy for each, however often it was given:
`f(batch, batch)` is given one dictionary. What the code changed in a copy each run changes in the container that has
that place in its own call.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from types import CellType
from typing import Any

import numpy as np
import torch

from weft.trace.interception.builtin_names import is_builtin_name
from weft.trace.interception.capture import TreeSpec, is_stand_in, tree_flatten
from weft.trace.interception.refusals import (
    FirstCallError,
    refuse,
    refuse_forgotten,
    refuse_kept_once,
    refuse_registered,
)
from weft.trace.python_state.caches import Memory
from weft.trace.python_state.containers import (
    EVERYTHING,
    MISSING,
    Keys,
    OfContext,
    Slotted,
    Touched,
    attributes,
    class_dictionary,
    entries,
    has_attributes,
    identity,
    look,
    put,
)
from weft.trace.python_state.facts import APART, BUFFERS, OF_C, SIMPLE, buffer_of, registries
from weft.trace.python_state.given_objects import kind_of_object
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.reachable import PythonState
from weft.trace.python_state.trees import (
    TakenApart,
    can_be_changed,
    children_of,
    has_stand_in,
    opened,
    refuse_text_of_stand_in,
    with_items,
)

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

    def settled(self, real: Real, apart: TakenApart) -> Rebound | None:
        """What each run puts there; None where that is what was there.

        `real` gives the tensor that a stand-in stands for: `self.count += 1` leaves the tensor that was there, and that
        is no change; of a number's stand-in it is an OwnNumber.
        """
        if isinstance(self.slot.key, torch.Tensor):
            refuse("kept tensor", None, detail="as a key")
        refuse_text_of_stand_in(self.slot.key)
        if isinstance(self.slot.container, OfContext) and self.before is MISSING:
            refuse("context variable", None, detail=self.slot.path)
        if self.is_whole and isinstance(self.slot.container, REFILLED):
            return self._refilled(real, apart)
        if self.is_whole:
            return self._whole(apart)
        if self._is_own(self.after, self.slot.key, real) or real.get(id(self.after)) is self.before is not None:
            return None
        leaves, structure = apart.flatten(self.after)
        return Rebound(self.slot, self.before, tuple(leaves), structure)

    def _refilled(self, real: Real, apart: TakenApart) -> Rebound | None:
        # Only what was in it is what it was: any other tensor that a stand-in stands for is another one at each run.
        there = {id(item) for item in self.before}
        known = [(item, real.get(id(item), item)) for item in self.after]
        own = {place for place, item in enumerate(self.after) if self._is_own(item, place, real)}
        after = [
            self.before[place]
            if place in own
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
        former = [
            Former(place) if place in own else _former(place, item, self.before) for place, item in enumerate(after)
        ]
        leaves, structure = apart.flatten(former)
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
            if isinstance(items[1], tuple) and has_stand_in(items[1]):
                refuse("kept tensor", None, detail="an array")
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
        if isinstance(container, np.ndarray) and container.dtype.hasobject:
            container.flat[:] = content
        elif isinstance(container, np.ndarray):
            container[...] = np.frombuffer(content, container.dtype).reshape(container.shape)
        elif isinstance(container, array):
            container[:] = array(container.typecode, content)
        elif isinstance(container, OF_C):
            memoryview(container).cast("B")[:] = content
        else:
            container[:] = content
        return
    items = [*(items.items() if isinstance(items, dict) else items)]
    container.clear()
    (container.update if isinstance(container, (set, dict)) else container.extend)(items)


GROWING = (*REFILLED, set)
OF_MODULES = frozenset({"parameters", "registry"})  # kinds of containers: what a module consists of
OF_PYTHON = frozenset({"__warningregistry__", "__builtins__"})  # what Python itself puts among global names


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What tracing had left in objects: the place, the stand-in there, what had been there before."""

    entries: tuple[tuple[Slot, Any, Any], ...]
    nested: tuple[str, ...] = ()  # containers that were given things with stand-ins in them

    def check(self, real: Real, constant: Constant) -> None:
        """Refuse a program that keeps a tensor there; one that is the same at every run may be kept at a first call.

        See `Change.settled` for what `real` is; `constant` computes a tensor that depends on no input.
        """
        for path in self.nested:
            refuse("kept tensor", None, detail=path)
        for slot, stand_in, before in self.entries:
            given = real.get(id(stand_in))
            if given is not None and given is before:
                continue
            if constant(stand_in) is None:
                refuse("kept tensor", None, detail=slot.path)
            raise refuse_kept_once(slot.path)


class Kept:
    """Remembers what the containers that a state has found hold."""

    def __init__(self, state: PythonState) -> None:
        self._before = {key: (container, _copied(container)) for key, container in state.containers.items()}
        self.memories = [*map(Memory, state.caches)]
        self.registered: list[str] = []  # where modules were given layers, parameters or hooks, or lost some

    def take_back(self, state: PythonState) -> list[Change]:
        """Find what has changed, and put back what was there."""
        owners = {id(class_dictionary(kind)): kind for kind in state.classes}
        kinds = {id(module.__dict__): "module" for module in state.modules}
        kinds |= {id(module.__dict__["_buffers"]): "buffers" for module in state.modules}
        kinds |= {id(module.__dict__["_parameters"]): "parameters" for module in state.modules}
        kinds |= {id(part): "registry" for module in state.modules for part in registries(module)}
        found: list[Change] = []
        for container, before in self._before.values():
            if _is_as_before(container, before):
                continue
            kind = kinds.get(id(container), "class" if id(container) in owners else "")
            place = partial(_place, state, container, owners.get(id(container)))
            for change in _changes(place, before, kind):
                if kind == "parameters" and is_stand_in(change.after):
                    continue  # these are refused
                if kind in OF_MODULES:
                    self.registered.append(change.slot.path)
                else:
                    found.append(change)
                change.take_back()
            is_ordered = id(container) in owners or not isinstance(container, dict) or _put_in_order(container, before)
            if not is_ordered and kind in OF_MODULES and not self.registered:
                self.registered.append(place(None).path)
        return found

    def of_first_call(self) -> FirstCallError | None:
        """The error for code that has done what later calls find done: functions forget what they remember since."""
        forgotten = [memory.name for memory in self.memories if memory.forget()]
        if forgotten:
            return refuse_forgotten(forgotten)
        return refuse_registered(self.registered[0]) if self.registered else None

    def touched(self) -> Touched:
        """What is different from before in the containers: what the code changed as it was traced."""
        found = Touched()
        for container, before in self._before.values():
            found.add(container, _difference(container, before))
        return found

    def put_back(self, state: PythonState) -> Left:
        """Put back what stood where a state found stand-ins now."""
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


def _put_in_order(container: dict[Any, Any], before: Mapping[Any, Any]) -> bool:
    """Let a dictionary that holds what it held before hold it in the same order; tells whether it did."""
    has_moved = list(dict.keys(container)) != list(before) and dict.keys(container) == before.keys()
    if has_moved:
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        for key in before:
            kind.__setitem__(container, key, kind.pop(container, key))
    return not has_moved


def _place(state: PythonState, container: Any, owner: type | None, key: Any) -> Slot:
    return replace(state.inside(container, key), owner=owner)


def _changes(place: Callable[[Any], Slot], before: Any, kind: str) -> Iterator[Change]:
    """What has changed in a container; of which `kind` of object it holds the attributes, if it does."""
    slot = place(None)
    container, changed = slot.container, _difference(slot.container, before)
    if isinstance(container, (*GROWING, *BUFFERS)):
        if changed is None:
            yield Change(slot, before, _copied(container))
        return
    is_free = isinstance(container, dict) and not kind and _are_all_kept(container)
    if is_free and not in_same_order(container, before):
        yield Change(slot, before, entries(container))
        return
    for key in _ordered(container, changed or ()):
        now, earlier = look(container, key), look(before, key)
        if (kind == "module" and key in APART) or key in OF_PYTHON or isinstance(now, Iterator):
            continue
        if is_builtin_name(now) or is_builtin_name(earlier):
            continue  # another thread traces code of the same module
        if kind == "class" and (_holds_tensor(now) or _holds_tensor(earlier)):
            continue  # these are refused
        yield Change(place(key), earlier, now)


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
    now = entries(container)
    if len(now) == len(before) and all(map(is_, now, before)) and all(map(is_, now.values(), before.values())):
        return frozenset()  # as of nearly all
    names = now.keys() | before.keys()
    return frozenset(name for name in names if look(container, name) is not look(before, name))


def _is_as_before(container: Any, before: Any) -> bool:
    """Whether a container holds what it held, in the same order."""
    changed = _difference(container, before)
    if changed is None or changed or isinstance(container, OrderedDict):  # which has an order of its own
        return False
    return not isinstance(container, dict) or all(map(is_, dict.keys(container), before))


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
        return entries(container)
    if isinstance(container, BUFFERS):
        return buffer_of(container)
    return [*container] if isinstance(container, GROWING) else container


class ArgumentCopies:
    """Containers that a trace works on, and leaves in them; `arguments` and `keywords` are what the code is given.

    What the function also reaches by itself is not copied: it is found by name, and has `own` as identities.
    """

    def __init__(
        self,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        flat: tuple[Sequence[Any], Sequence[Any]],
        own: Mapping[int, Any],
    ) -> None:
        """`flat` are the leaves, and the objects that are taken apart."""
        self._leaves = iter(flat[0])
        self._objects = {id(thing) for thing in flat[1]}
        self._own = own
        self._count = 0
        self._copies: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}  # of copies, by identity: the place of the container
        self._entries: list[tuple[int, Any, Any]] = []  # the place, the copy, what was in it
        self.arguments = tuple(map(self._copied, arguments))
        self.keywords = {name: self._copied(argument) for name, argument in keywords.items()}

    def _copied(self, thing: Any) -> Any:
        is_object = id(thing) in self._objects
        children = list(attributes(thing).values()) if is_object else children_of(thing)
        if children is None:
            return next(self._leaves)
        place, self._count = self._count, self._count + 1
        items = [self._copied(child) for child in children]  # leaves are counted of each place
        if id(thing) in self._own:
            return thing
        if id(thing) in self._copies:
            return self._copies[id(thing)]
        copied = kind_of_object(thing).make(items) if is_object else with_items(thing, items)
        self.numbers[id(copied)] = place
        self._entries.append((place, copied, _content(copied)))
        if can_be_changed(thing):
            self._copies[id(thing)] = copied
        return copied

    @property
    def copies(self) -> list[Any]:
        """The containers and objects that the code is given."""
        return [copied for _, copied, _ in self._entries]

    def changes(self) -> Iterator[Change]:
        """What the code changed in the containers."""
        for place, copied, (items, own) in self._entries:
            if isinstance(copied, REFILLED):
                if len(copied) != len(items) or not all(map(is_, copied, items)):
                    yield Change(Slot(copied, None, "an argument", given=place), items, [*copied])
            elif isinstance(copied, dict):
                yield from dictionary_changes(Slot(copied, None, "an argument", given=place), items)
            if own is not None:
                slot = Slot(attributes(copied), None, "an argument", given=place, is_attribute=True)
                yield from dictionary_changes(slot, own)


def dictionary_changes(slot: Slot, before: dict[Any, Any]) -> Iterator[Change]:
    """What is different in a dictionary: its entries, or all of it where they have another order."""
    now = slot.container
    if isinstance(now, dict) and not in_same_order(now, before):
        yield Change(slot, before, entries(now))
        return
    gone = (key for key in before if key not in now)
    for key in (*now, *gone):
        found, earlier = look(now, key), before.get(key, MISSING)
        if found is not earlier:
            yield Change(slot.at(key), earlier, found)


def _content(copied: Any) -> tuple[Any, dict[str, Any] | None]:
    """The items of a copy, and its attributes where it has some."""
    items = [*copied] if isinstance(copied, REFILLED) else entries(copied) if isinstance(copied, dict) else None
    return items, {**attributes(copied)} if has_attributes(copied) else None
