"""What Python values live in: dictionaries, lists, cells, objects with `__slots__`; and what of it has changed."""

from __future__ import annotations

import gc
from collections.abc import Iterator, MutableMapping
from typing import Any

MISSING = object()
NOTHING: frozenset[Any] = frozenset()


def look(container: Any, key: Any) -> Any:
    """What a closure's cell (without a key), a dictionary or a list holds now; MISSING if it holds nothing."""
    try:
        return container.cell_contents if key is None else container[key]
    except (LookupError, ValueError):
        return MISSING


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

    def _names(self) -> list[str]:
        return [name for kind in type(self.thing).__mro__ for name in slots(kind)]

    def __len__(self) -> int:
        return len([*self])


def attributes(thing: Any) -> MutableMapping[str, Any]:
    """The attributes of an object of a Python class."""
    return vars(thing) if hasattr(thing, "__dict__") else Slotted(thing)


def has_attributes(thing: Any) -> bool:
    """Whether an object has attributes of its own."""
    return hasattr(thing, "__dict__") or any(map(slots, type(thing).__mro__))


def slots(kind: type) -> tuple[str, ...]:
    """The attributes that a class itself makes room for."""
    found = kind.__dict__.get("__slots__", ())
    names = (found,) if isinstance(found, str) else tuple(found)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


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


class Touched:
    """What Python code changed as it was traced: of a dictionary some keys, of a list all."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, frozenset[Any] | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def keys(self, container: Any) -> frozenset[Any] | None:
        """The keys of a container that were changed; None is all of it."""
        found = self._found.get(identity(container))
        return NOTHING if found is None else found[1]

    def add(self, container: Any, keys: frozenset[Any] | None) -> None:
        """Note that keys of a container were changed."""
        before = self.keys(container)
        if keys is None or keys:
            # The container is kept: no other may get its identity.
            self._found[identity(container)] = container, None if keys is None or before is None else before | keys

    def merge(self, other: Touched) -> None:
        """Note all that another one has."""
        for container, keys in other._found.values():
            self.add(container, keys)
