"""Read and compare the containers of Python values: dictionaries, lists, cells, objects with `__slots__`."""

from __future__ import annotations

import abc
import gc
import weakref
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from functools import lru_cache
from threading import local
from types import CellType, MappingProxyType
from typing import Any

from weft.trace.interception.builtin_names import is_builtin_name

MISSING = object()
Keys = frozenset[Any]
NOTHING: Keys = frozenset()


class _Everything(frozenset[Any]):
    """The keys of a container that has every key."""

    def __contains__(self, key: object) -> bool:
        return True


EVERYTHING: Keys = _Everything({"every key"})


def look(container: Any, key: Any) -> Any:
    """What a closure's cell (without a key), a dictionary or a list holds now; MISSING if it holds nothing."""
    if isinstance(container, dict):
        return dict.get(container, key, MISSING)  # whatever its class does about keys that are missing
    try:
        return container.cell_contents if key is None else container[key]
    except (LookupError, ValueError, TypeError, AttributeError):
        return MISSING


def put(container: Any, key: Any, thing: Any) -> None:
    """Put something in a closure's cell, a dictionary or a list; MISSING is nothing."""
    if isinstance(container, CellType):
        if thing is MISSING:
            del container.cell_contents
        else:
            container.cell_contents = thing
    elif thing is MISSING:
        _plain(container).__delitem__(container, key)
    else:
        _plain(container).__setitem__(container, key, thing)


def _plain(container: Any) -> Any:
    """The class whose methods only put things in: what one of the user's does beside is an effect of its own."""
    return next((kind for kind in (OrderedDict, dict, list) if isinstance(container, kind)), type(container))


def entries(container: Any) -> dict[Any, Any]:
    """What a dictionary holds under each key, whatever its class gives to those who ask."""
    return dict(_plain(container).items(container))


class Slotted(MutableMapping[str, Any]):
    """Attributes of one object that has no `__dict__`."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getitem__(self, name: str) -> Any:
        found = getattr(self.thing, name, MISSING) if name in self._names() else MISSING
        if found is MISSING:
            raise KeyError(name)
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self.thing, name, value)  # frozen classes too: it is what was there before

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self.thing, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names() if hasattr(self.thing, name))

    def names(self) -> list[str]:
        """Those that it may have."""
        return self._names()

    def _names(self) -> list[str]:
        return _slots_of(type(self.thing))  # type: ignore[arg-type]  # classes can be hashed

    def __len__(self) -> int:
        return sum(1 for _ in self)  # not of a list of them, which would ask how long it will be


class OfThread(Slotted):
    """Attributes that each thread has its own of: those of the thread that asks."""

    def _names(self) -> list[str]:
        return list(vars(self.thing))

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.thing, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.thing, name)


class OfContext(Slotted):
    """What a context variable holds, under the name of value, in the context that asks."""

    def _names(self) -> list[str]:
        return ["value"]

    def __getitem__(self, name: str) -> Any:
        try:
            return self.thing.get()  # of one that was never set its default
        except LookupError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter([] if look(self, "value") is MISSING else ["value"])

    def __setitem__(self, name: str, value: Any) -> None:
        self.thing.set(value)

    def __delitem__(self, name: str) -> None:
        pass  # a variable that was set cannot be unset: it is set to what it was


class OfFunction(Slotted):
    """What a function is made of, which others may replace."""

    def _names(self) -> list[str]:
        return ["__code__", "__defaults__", "__kwdefaults__"]


class OfPartial(Slotted):
    """What a partial function is made of, which traced code finds other things in."""

    def _names(self) -> list[str]:
        return ["func", "args", "keywords"]

    def __setitem__(self, name: str, value: Any) -> None:
        made_of = {part: getattr(self.thing, part) for part in self._names()} | {name: value}
        self.thing.__setstate__((*made_of.values(), vars(self.thing)))


class OfDefaults(Slotted):
    """What makes the missing items of a dictionary, which others may replace."""

    def _names(self) -> list[str]:
        return ["default_factory"]


class OfObject(Slotted):
    """The class of an object, which others may replace."""

    def _names(self) -> list[str]:
        return ["__class__"]


class OfClass(Slotted):
    """What a class is derived from, which others may replace."""

    def _names(self) -> list[str]:
        return ["__mro__"]


class Registered(Slotted):
    """Which classes count as derived from an abstract one because somebody has registered them."""

    def _names(self) -> list[str]:
        return ["register"]

    def __getitem__(self, _: Any) -> Any:
        found = [reference() for reference in abc._get_dump(self.thing)[0]]  # type: ignore[attr-defined]  # not public, but nothing else tells
        return tuple(sorted((kind for kind in found if kind is not None), key=id))


class AbsentNames(Slotted):
    """Under a set of names those of them that an object has as attributes of its own."""

    def _names(self) -> list[str]:
        return []

    def __getitem__(self, names: Any) -> Any:
        own = self.thing
        if not isinstance(own, dict):
            return tuple(sorted(name for name in own if name in names))  # few: a class makes room for each
        if own.keys().isdisjoint(names):
            return ()
        # While code is traced names of builtins stand for others there.
        return tuple(sorted(name for name in names if name in own and not is_builtin_name(own.get(name))))


def attributes(thing: Any) -> MutableMapping[str, Any]:
    """The attributes of an object of a Python class."""
    if isinstance(thing, local):
        return OfThread(thing)
    found = getattr(thing, "__dict__", None)
    return found if isinstance(found, dict) else Slotted(thing)  # some objects give something for every name


def has_attributes(thing: Any) -> bool:
    """Whether an object has attributes of its own."""
    return hasattr(thing, "__dict__") or any(map(slots, type(thing).__mro__))


def slots(kind: type) -> tuple[str, ...]:
    """The attributes that a class itself makes room for."""
    found = kind.__dict__.get("__slots__", ())
    names = (found,) if isinstance(found, str) else tuple(found)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@lru_cache(maxsize=1024)
def _slots_of(kind: type) -> list[str]:
    """The attributes that a class, and those that it is derived from, make room for."""
    return [name for base in kind.__mro__ for name in slots(base)]


def class_dictionary(kind: type) -> dict[str, Any]:
    """The dictionary of a class, which shows it through a proxy: comparing and watching need the dictionary itself."""
    (found,) = gc.get_referents(vars(kind))
    own: dict[str, Any] = found
    return own


def identity(container: Any) -> int:
    """What tells a container from others, as long as it lives: two views of one object's attributes are one.

    A list of a class with `__slots__` is two: its items, and its attributes.
    """
    return -id(container.thing) if isinstance(container, Slotted) else id(container)


VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def behind(thing: Any) -> Any:
    """What a view or a container of the library keeps its items in; None of any other thing."""
    if isinstance(thing, (MappingProxyType, *VIEWS)):
        return next(iter(gc.get_referents(thing)))
    if isinstance(thing, weakref.WeakSet):
        return vars(thing)["data"]
    return thing.obj if isinstance(thing, memoryview) else None


def referent(thing: Any) -> Any:
    """What a weak reference or a proxy is of, of a method its object; None where that is gone."""
    if isinstance(thing, weakref.ReferenceType):
        return getattr(found := thing(), "__self__", found)
    with suppress(ReferenceError):
        return thing.__reduce_ex__.__self__  # a method of what it is of
    return None


class Touched:
    """What Python code changed as it was traced: of a dictionary some keys, of a list all.

    Some of it each run of a program gives new tensors; the rest was changed once.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, Keys | None]] = {}
        self._given: dict[int, tuple[Any, Keys]] = {}
        self._grown: dict[int, Any] = {}
        self._numbers: dict[int, tuple[Any, Keys]] = {}

    def keys(self, container: Any) -> frozenset[Any] | None:
        """The keys of a container that were changed once, or are never looked at; None is all of it."""
        if self._grown and id(container) in self._grown:
            return None
        found = self._found.get(identity(container))
        return NOTHING if found is None else found[1]

    def given(self, container: Any) -> Keys:
        """The keys of a container under which each run puts new tensors."""
        found = self._given.get(identity(container)) if self._given else None
        return NOTHING if found is None else found[1]

    def add(self, container: Any, keys: frozenset[Any] | None) -> None:
        """Note that keys of a container were changed."""
        before = self.keys(container)
        if keys is None or keys:
            # The container is kept: no other may get its identity.
            self._found[identity(container)] = container, None if keys is None or before is None else before | keys

    def give(self, container: Any, keys: Keys) -> None:
        """Note that each run puts new tensors under keys of a container."""
        before = self.given(container)
        self._given[identity(container)] = (
            container,
            (EVERYTHING if EVERYTHING is keys or EVERYTHING is before else before | keys),
        )

    def grow(self, container: Any) -> None:
        """Note that runs append to a list, whose items this program's code never looks at."""
        self._grown[id(container)] = container

    def numbers(self, container: Any) -> Keys:
        """The keys of a container that hold whole numbers which this program takes as they are at each run."""
        found = self._numbers.get(identity(container)) if self._numbers else None
        return NOTHING if found is None else found[1]

    def take_number(self, container: Any, key: Any) -> None:
        """Note that this program takes the number under a key of a container as it is at each run."""
        self._numbers[identity(container)] = container, self.numbers(container) | {key}

    def of_program(self, own: Touched) -> Touched:
        """The same, also as it will be later on, with the lists that one program appends to, and its numbers."""
        found = Touched()
        found._found, found._given, found._grown, found._numbers = self._found, self._given, own._grown, own._numbers
        return found

    def every_given(self) -> list[tuple[Any, Keys]]:
        """The containers under whose keys runs put new tensors."""
        return list(self._given.values())

    def merge(self, other: Touched) -> None:
        """Note all that another one has."""
        for container, keys in other._found.values():
            self.add(container, keys)
        for container, keys in other._given.values():
            self.give(container, keys)
