"""An object whose class has `__slots__` -> its attributes, as a dictionary that reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from weft.trace.facts import MISSING


class Slotted(MutableMapping[str, Any]):
    """Attributes of one object that has no `__dict__`."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getitem__(self, name: str) -> Any:
        found = getattr(self.thing, name, MISSING)
        if found is MISSING:
            raise KeyError(name)
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self.thing, name, value)  # frozen classes too: it is what was there before

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self.thing, name)

    def __iter__(self) -> Iterator[str]:
        names = (name for kind in type(self.thing).__mro__ for name in slots(kind))
        return (name for name in names if hasattr(self.thing, name))

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


def identity(container: Any) -> int:
    """What tells a container from others, as long as it lives: two views of one object's attributes are one."""
    return id(container.thing if isinstance(container, Slotted) else container)
