"""Know where CPython keeps what dictionaries, lists, sets, cells, functions, classes and slots hold, as words.

How words are found out, and how they are compared, is as in weft.runtime.memory_layout.
"""

from __future__ import annotations

import ctypes
import sys
from abc import ABCMeta
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import CellType, MappingProxyType, MemberDescriptorType
from typing import Any

from weft.runtime.memory_layout import (
    EVERY_BIT,
    FIRST_BYTE,
    LEAST_POINTER,
    MOST_POINTER,
    WORD,
    Row,
    row_at,
    word,
)
from weft.trace.python_state.containers import (
    MISSING,
    AbsentNames,
    OfClass,
    OfFunction,
    OfObject,
    OfPartial,
    Registered,
    Slotted,
)

# Byte offsets in CPython's objects.
USED, VERSION, KEYS, VALUES = 16, 24, 32, 40  # of a dictionary; up to Python 3.13 its version counts every change of it
FIRST_NODE, NEXT_NODE = 48, 16  # the order of an ordered dictionary: nodes, each with its key and the next node
KEYS_COUNT = 24  # of a dictionary's keys: how many entries have been made
KEYS_KIND, KIND_BITS = 8, 0xFFFFFF  # of a dictionary's keys: their size and kind
CELL_CONTENTS = 16
CLASS = 8
LIST_SIZE, LIST_ITEMS = 16, 24
FUNCTION_PLACES = (48, 56, 64) if sys.version_info >= (3, 11) else (16, 32, 40)
FUNCTION_PARTS = dict(zip(("__code__", "__defaults__", "__kwdefaults__"), FUNCTION_PLACES, strict=True))
PARTIAL_PARTS = {"func": 16, "args": 24, "keywords": 32}
MEMBER, MEMBER_OFFSET = 40, 16  # of what a class has for a slot: what describes it, and there the place in its objects
REGISTRY = 16  # of what an abstract class keeps: a set, once there is something in it
SET_MASK, SET_TABLE, SET_ENTRY = 32, 40, 16
LAST_WITH_VERSIONS = (3, 13)
LARGEST_IMAGE = 1 << 16
Images = dict[int, tuple[int, bytes]]  # of dictionaries: where the keys begin, and the bytes there
Rows = list[Row]


def held_rows(container: Any, key: Any, value: Any, images: Images) -> Rows | None:
    """Give the words that say that a place still holds a value: in a closure, a list, a dictionary; None if unknown.

    Where entries of a dictionary cannot be told apart, its version is given: it changes with any of them. Each
    dictionary is read once; `images` keeps it.
    """
    kind = type(container)
    if kind is CellType and _cells_are_known():
        return [(id(container) + CELL_CONTENTS, EVERY_BIT, id(value))]
    if kind is tuple:
        return []
    if kind in PARTS_OF:
        return _part_rows(container.thing, kind, key)
    if kind is AbsentNames:
        return _absent_rows(container.thing, key)
    if kind is Slotted:
        return _slot_rows(container.thing, key, value)
    if kind is list and _lists_are_known():
        return _list_rows(container, range(key, key + 1))
    if kind is dict:
        return _entry_rows(container, key, value, images) or dictionary_rows(container)
    return None


PARTS_OF = (OfFunction, OfObject, OfClass, OfPartial, Registered)


def _part_rows(thing: Any, kind: Any, key: str) -> Rows | None:
    """Give the words that say what a function or class is made of, or of which class an object is."""
    if kind is Registered:
        return _registered_rows(thing) if _registries_are_known() else None
    if kind is OfPartial:
        return [row_at(id(thing) + PARTIAL_PARTS[key])] if _partials_are_known() else None
    if kind is OfClass:
        at = _place_of_line()
        return None if at is None else [row_at(id(thing) + at)]
    if not _functions_are_known():
        return None
    return [row_at(id(thing) + FUNCTION_PARTS[key])] if kind is OfFunction else class_rows(thing)


def _absent_rows(own: Any, names: frozenset[str]) -> Rows | None:
    """Give the words that say that a dictionary, or an object with slots, has got no attributes of these names."""
    if type(own) is dict:
        return name_rows(own)
    if type(own) is not Slotted:
        return None
    found = [_slot_rows(own.thing, name, MISSING) for name in own.names() if name in names]
    return None if None in found else [row for rows in found for row in rows or ()]


def _slot_rows(thing: Any, name: str, value: Any) -> Rows | None:
    """Give the word that says that an attribute that a class makes room for still holds a value, or nothing."""
    place = _place_of_slot(type(thing), name)
    return None if place is None else [(id(thing) + place, EVERY_BIT, 0 if value is MISSING else id(value))]


def _place_of_slot(kind: Any, name: str) -> int | None:
    """Where objects of a class have what is in a slot; None where code of the class may give something else."""
    if not _slots_are_known() or kind.__getattribute__ is not object.__getattribute__ or hasattr(kind, "__getattr__"):
        return None
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    if type(found) is not MemberDescriptorType:
        return None
    # SAFETY: the class keeps what describes its slots as long as it lives.
    return word(word(id(found) + MEMBER) + MEMBER_OFFSET)


def _registered_rows(kind: Any) -> Rows | None:
    """Give the words that say which classes count as derived from an abstract one."""
    place = id(kind._abc_impl) + REGISTRY
    if not word(place):
        return [row_at(place)]
    # SAFETY: a class keeps its set as long as it lives, and whoever compares the words keeps the class.
    inside = _set_rows(ctypes.cast(word(place), ctypes.py_object).value)
    return None if inside is None else [row_at(place), *inside]


def class_rows(thing: Any) -> Rows:
    """Give the word that says of which class an object is."""
    return [row_at(id(thing) + CLASS)]


def name_rows(container: dict[Any, Any]) -> Rows | None:
    """Give the words that say that a dictionary has got no other keys; what is under those that it has may change."""
    if not _names_are_known():
        return dictionary_rows(container)
    keys = word(id(container) + KEYS)
    return [row_at(id(container) + USED), (id(container) + KEYS, EVERY_BIT, keys), row_at(keys + KEYS_COUNT)]


def dictionary_rows(container: dict[Any, Any]) -> Rows | None:
    """Give the words that say that a dictionary was not changed at all; its version knows nothing of its order."""
    if not versions_count():
        return None
    is_ordered = isinstance(container, OrderedDict) and dict.__len__(container) > 1
    if is_ordered and not _orders_are_known():
        return None
    return [row_at(id(container) + VERSION), *(_order_rows(container) if is_ordered else ())]


def content_rows(
    thing: Any, can_change: Callable[[Any, int], bool], depth: int = 0, kept: list[Any] | None = None
) -> Rows | None:
    """Give the words that say that a container holds what it held, and so does what it holds if that can change.

    Words name things by where they are: whoever compares them later keeps those in `kept`, so that no others get there.
    """
    found = next((known for kind, known in _KINDS.items() if isinstance(thing, kind)), None)
    if found is None:
        return None
    rows_of, items = found
    inside = list(items(thing))  # another thread may change it meanwhile
    if kept is not None:
        kept.append(inside)
    found_rows = rows_of(thing)
    if found_rows is None:
        return None
    rows = [*found_rows]
    for item in inside:
        if can_change(item, depth + 1):
            inner = content_rows(item, can_change, depth + 1, kept)
            if inner is None:
                return None
            rows += inner
    return rows


def _entry_rows(container: dict[Any, Any], key: Any, value: Any, images: Images) -> Rows | None:
    if not _entries_are_known():
        return None
    if id(container) not in images:
        images[id(container)] = _image(container)
    start, image = images[id(container)]
    at = _find(image, id(key), id(value))
    if at is None:
        return None
    kind = start + KEYS_KIND
    return [
        (id(container) + KEYS, EVERY_BIT, start),
        (kind, KIND_BITS, word(kind) & KIND_BITS),
        (start + at, EVERY_BIT, id(key)),
        (start + at + WORD, EVERY_BIT, id(value)),
    ]


def _image(container: dict[Any, Any]) -> tuple[int, bytes]:
    """Where a dictionary's keys begin and what is there; nothing for one that shares its keys, or has very many."""
    size = sys.getsizeof(container) - _BARE
    if word(id(container) + VALUES) or size > LARGEST_IMAGE:
        return 0, b""
    # SAFETY: Python says how large the keys are. Should another thread make others of them just now, then these, being
    # no larger than that, stay readable, and what is found in them agrees with nothing that is compared later.
    start = word(id(container) + KEYS)
    return start, ctypes.string_at(start, size)


def _find(image: bytes, key: int, value: int) -> int | None:
    """Where in an image an entry lies: a key's word and behind it the value's."""
    pattern = key.to_bytes(WORD, "little") + value.to_bytes(WORD, "little")
    at = image.find(pattern)
    while at % WORD and at >= 0:
        at = image.find(pattern, at + 1)
    return at if at >= 0 else None


def _order_rows(thing: dict[Any, Any]) -> Rows:
    rows = [row_at(id(thing) + FIRST_NODE)]
    for _ in range(dict.__len__(thing)):
        rows.append(row_at(rows[-1][2] + NEXT_NODE))
    return rows


def _whole_list_rows(thing: list[Any]) -> Rows | None:
    return _list_rows(thing, range(list.__len__(thing))) if _lists_are_known() else None


def _list_rows(thing: list[Any], places: range) -> Rows:
    items = word(id(thing) + LIST_ITEMS)
    size, start = row_at(id(thing) + LIST_SIZE), row_at(id(thing) + LIST_ITEMS)
    return [size, start, *(row_at(items + WORD * place) for place in places)]


def _set_rows(thing: set[Any]) -> Rows | None:
    if not _sets_are_known():
        return None
    table, entries = word(id(thing) + SET_TABLE), word(id(thing) + SET_MASK) + 1
    heads = [row_at(id(thing) + at) for at in (USED, SET_MASK, SET_TABLE)]
    return [*heads, *(row_at(table + SET_ENTRY * place) for place in range(entries))]


def _no_rows(thing: Any) -> Rows:
    del thing
    return []


# By what a container is or is derived from, the first that fits: its own words, and what is in it.
_KINDS: Mapping[type, tuple[Callable[[Any], Rows | None], Callable[[Any], Any]]] = MappingProxyType(
    {
        dict: (dictionary_rows, dict.values),
        list: (_whole_list_rows, list.__iter__),
        set: (_set_rows, set.__iter__),
        tuple: (_no_rows, tuple.__iter__),
    }
)
_BARE = sys.getsizeof({})


@cache
def versions_count() -> bool:
    """Whether dictionaries have versions where they are expected."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] > LAST_WITH_VERSIONS:
        return False
    probe = {"entry": 0}
    seen = {word(id(probe) + VERSION)}
    for number in range(1, 5):
        probe["entry"] = number
        seen.add(word(id(probe) + VERSION))
    changed = len(seen) == 5
    before = word(id(probe) + VERSION)
    probe.get("entry")
    return changed and word(id(probe) + VERSION) == before


@cache
def _entries_are_known() -> bool:
    """Whether a dictionary's keys and values lie side by side where they are expected."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] > LAST_WITH_VERSIONS:
        return False
    things = [object() for _ in range(100)]
    for keys in ([f"name {number}" for number in range(100)], [(number,) for number in range(100)]):
        probe: dict[Any, Any] = dict(zip(keys[:20], things, strict=False))
        start, image = _image(probe)
        places = [_find(image, id(key), id(thing)) for key, thing in zip(keys[:20], things, strict=False)]
        if None in places or len(set(places)) != 20:
            return False
        at = start + (places[7] or 0)
        probe[keys[7]] = things[50]
        replaced = (word(at), word(at + WORD)) == (id(keys[7]), id(things[50]))
        del probe[keys[7]]
        deleted = word(at) != id(keys[7]) and word(id(probe) + KEYS) == start
        kind = word(start + KEYS_KIND) & KIND_BITS
        probe.update(zip(keys, things, strict=True))
        grown = word(id(probe) + KEYS)
        if not (replaced and deleted and grown != start and word(grown + KEYS_KIND) & KIND_BITS != kind):
            return False
    return True


@cache
def _names_are_known() -> bool:
    """Whether a dictionary counts its keys, and all that it has ever had, where that is expected."""
    if not _entries_are_known():
        return False

    def state() -> tuple[int, int]:
        return word(id(probe) + USED), word(word(id(probe) + KEYS) + KEYS_COUNT)

    probe: dict[Any, Any] = dict.fromkeys(["first", "second", "third"], 0)
    found = [state()]
    for change in (lambda: probe.update(first=1), lambda: probe.pop("second"), lambda: probe.update(fourth=1)):
        change()
        found.append(state())
    return found == [(3, 3), (3, 3), (2, 3), (3, 4)]


@cache
def _orders_are_known() -> bool:
    """Whether an ordered dictionary has its nodes where they are expected."""
    keys = [object() for _ in range(9)]
    probe = OrderedDict.fromkeys(keys)
    for moved in (3, 8, 0, 5):
        probe.move_to_end(keys[moved])
        node = word(id(probe) + FIRST_NODE)
        for key in probe:
            if not LEAST_POINTER < node < MOST_POINTER or word(node) != id(key):
                return False
            node = word(node + NEXT_NODE)
        if node:
            return False
    return True


@cache
def _registries_are_known() -> bool:
    """Whether abstract classes have the set of classes that count as derived from them where it is expected."""
    if sys.implementation.name != "cpython":
        return False
    probe, derived = ABCMeta("Probe", (), {}), [type(f"Derived{number}", (), {}) for number in range(20)]
    found = [word(id(probe._abc_impl) + REGISTRY)]  # type: ignore[attr-defined]
    for number, kind in enumerate(derived, 1):
        probe.register(kind)
        registry = word(id(probe._abc_impl) + REGISTRY)  # type: ignore[attr-defined]
        if not LEAST_POINTER < registry < MOST_POINTER or word(registry + CLASS) != id(set):
            return False
        found.append(registry)
        if len(ctypes.cast(registry, ctypes.py_object).value) != number:
            return False
    return found[0] == 0 and len(set(found)) == 2


@cache
def _lists_are_known() -> bool:
    """Whether a list has its length and its items where they are expected."""
    things = [object(), object(), object()]
    items = word(id(things) + LIST_ITEMS)
    return word(id(things) + LIST_SIZE) == len(things) and word(items + WORD) == id(things[1])


@cache
def _functions_are_known() -> bool:
    """Whether functions have their code and the defaults of their arguments where they are expected, things a class."""

    def probe(first: object = WORD, *, second: object = EVERY_BIT) -> None:
        del first, second

    def bare() -> None:
        pass

    def agrees(function: Any) -> bool:
        parts = ((at, getattr(function, name)) for name, at in FUNCTION_PARTS.items())
        return all(word(id(function) + at) == (0 if part is None else id(part)) for at, part in parts)

    before = agrees(probe) and agrees(bare) and word(id(probe) + CLASS) == id(type(probe))
    bare.__code__, probe.__defaults__, probe.__kwdefaults__ = (lambda: None).__code__, (KEYS,), {"second": VALUES}
    return before and agrees(probe) and agrees(bare)


SIZE_OF_CLASS: int = type.__basicsize__  # type: ignore[assignment]  # of a class it is a number


@cache
def _place_of_line() -> int | None:
    """Where a class has what it is derived from; None if that is not told by one word."""

    class Base:
        pass

    class Other(Base):
        pass

    class Probe(Base):
        pass

    found = [at for at in range(FIRST_BYTE, SIZE_OF_CLASS, WORD) if word(id(Probe) + at) == id(Probe.__mro__)]
    before = Probe.__mro__
    Probe.__bases__ = (Other,)
    moved = [at for at in found if word(id(Probe) + at) == id(Probe.__mro__) != id(before)]
    return moved[0] if len(moved) == 1 else None


@cache
def _slots_are_known() -> bool:
    """Whether a class describes where its objects have their slots where that is expected."""
    if sys.implementation.name != "cpython":
        return False

    base: Any = type("Base", (), {"__slots__": ("first", "second")})
    kind: Any = type("Probe", (base,), {"__slots__": ("third",)})
    probe, value, other = kind(), object(), object()
    members = (vars(base)["first"], vars(base)["second"], vars(kind)["third"])
    described = [word(id(member) + MEMBER) for member in members]
    if not all(LEAST_POINTER < place < MOST_POINTER for place in described):
        return False
    found = [word(place + MEMBER_OFFSET) for place in described]
    if len(set(found)) != 3 or not all(at % WORD == 0 and FIRST_BYTE <= at < kind.__basicsize__ for at in found):
        return False
    second, third = id(probe) + found[1], id(probe) + found[2]
    seen = [(word(second), word(third))]
    for change in (partial(setattr, probe, "second", value), partial(setattr, probe, "third", other)):
        change()
        seen.append((word(second), word(third)))
    del probe.second
    seen.append((word(second), word(third)))
    return seen == [(0, 0), (id(value), 0), (id(value), id(other)), (0, id(other))]


@cache
def _partials_are_known() -> bool:
    """Whether a partial function has what it is made of where that is expected."""
    probe = partial(int, "12", base=3)
    return all(word(id(probe) + at) == id(getattr(probe, name)) for name, at in PARTIAL_PARTS.items())


@cache
def _sets_are_known() -> bool:
    """Whether a set has its size and its table where they are expected."""
    for count in (3, 30):
        things = {object() for _ in range(count)}
        entries = word(id(things) + SET_MASK) + 1
        if word(id(things) + USED) != count or not count < entries <= 1 << 10:
            return False
        table = word(id(things) + SET_TABLE)
        found = {word(table + SET_ENTRY * place) for place in range(entries)}
        if not set(map(id, things)) <= found:
            return False
    return True


@cache
def _cells_are_known() -> bool:
    """Whether a closure's cell has its object where it is expected."""
    cells = [(CellType(thing), thing) for thing in (object(), object(), object())]
    return all(word(id(cell) + CELL_CONTENTS) == id(thing) for cell, thing in cells)
