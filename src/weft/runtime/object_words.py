"""What Python containers hold -> the words of memory that say that they still hold it.

Comparing words takes a nanosecond each, comparing a fact in Python a microsecond. Where CPython keeps things is found
out at first use, with objects that differ in one thing each; where that does not come out as expected (another Python)
there are no words. Whoever compares them holds the containers and Python's lock, and compares in the order in which
they are given: a word that leads to memory comes before those in it.
"""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from types import CellType, MappingProxyType
from typing import Any

from weft.runtime.tensor_words import EVERY_BIT, WORD, Row, word

# Byte offsets in CPython's objects.
USED, VERSION, KEYS, VALUES = 16, 24, 32, 40  # of a dictionary; up to Python 3.13 its version counts every change of it
FIRST_NODE, NEXT_NODE = 48, 16  # the order of an ordered dictionary: nodes, each with its key and the next node
KEYS_KIND, KIND_BITS = 8, 0xFFFFFF  # of a dictionary's keys: their size and kind
CELL_CONTENTS = 16
LIST_SIZE, LIST_ITEMS = 16, 24
SET_MASK, SET_TABLE, SET_ENTRY = 32, 40, 16
LEAST_POINTER, MOST_POINTER = 1 << 20, 1 << 48
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
    if kind is list and _lists_are_known():
        return _list_rows(container, range(key, key + 1))
    if kind is dict:
        return _entry_rows(container, key, value, images) or version_rows(container)
    return None


def version_rows(container: dict[Any, Any]) -> Rows | None:
    """Give the word that says that a dictionary was not changed at all."""
    return [_row(id(container) + VERSION)] if versions_count() else None


def content_rows(thing: Any, can_change: Callable[[Any, int], bool], depth: int = 0) -> Rows | None:
    """Give the words that say that a container holds what it held, and so does what it holds if that can change."""
    found = next((known for kind, known in _KINDS.items() if isinstance(thing, kind)), None)
    if found is None:
        return None
    rows_of, items = found
    rows = rows_of(thing)
    for item in list(items(thing)):  # another thread may change it meanwhile
        inner = content_rows(item, can_change, depth + 1) if can_change(item, depth + 1) else []
        if rows is None or inner is None:
            return None
        rows = rows + inner
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


def _row(place: int) -> Row:
    return place, EVERY_BIT, word(place)


def _ordered_rows(thing: OrderedDict[Any, Any]) -> Rows | None:
    rows = version_rows(thing)
    return [*rows, *_order_rows(thing)] if rows and _orders_are_known() else None


def _order_rows(thing: OrderedDict[Any, Any]) -> Rows:
    rows = [_row(id(thing) + FIRST_NODE)]
    for _ in range(dict.__len__(thing)):
        rows.append(_row(rows[-1][2] + NEXT_NODE))
    return rows


def _whole_list_rows(thing: list[Any]) -> Rows | None:
    return _list_rows(thing, range(list.__len__(thing))) if _lists_are_known() else None


def _list_rows(thing: list[Any], places: range) -> Rows:
    items = word(id(thing) + LIST_ITEMS)
    size, start = _row(id(thing) + LIST_SIZE), _row(id(thing) + LIST_ITEMS)
    return [size, start, *(_row(items + WORD * place) for place in places)]


def _set_rows(thing: set[Any]) -> Rows | None:
    if not _sets_are_known():
        return None
    table, entries = word(id(thing) + SET_TABLE), word(id(thing) + SET_MASK) + 1
    heads = [_row(id(thing) + at) for at in (USED, SET_MASK, SET_TABLE)]
    return [*heads, *(_row(table + SET_ENTRY * place) for place in range(entries))]


def _no_rows(thing: Any) -> Rows:
    del thing
    return []


# By what a container is or is derived from, the first that fits: its own words, and what is in it.
_KINDS: Mapping[type, tuple[Callable[[Any], Rows | None], Callable[[Any], Any]]] = MappingProxyType(
    {
        OrderedDict: (_ordered_rows, dict.values),
        dict: (version_rows, dict.values),
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
def _lists_are_known() -> bool:
    """Whether a list has its length and its items where they are expected."""
    things = [object(), object(), object()]
    items = word(id(things) + LIST_ITEMS)
    return word(id(things) + LIST_SIZE) == len(things) and word(items + WORD) == id(things[1])


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
