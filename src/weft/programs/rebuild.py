"""The structure of a nested result -> a function that builds it from its leaves, quicker than in general."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from weft.trace.interception.capture import TreeSpec, tree_unflatten

Build = Callable[[Sequence[Any]], Any]
FLAT = (list, tuple)


def flat_kind(structure: TreeSpec) -> type | None:
    """Tell whether a result is a list or a tuple of leaves, and which."""
    is_flat = structure.type in FLAT and all(child.is_leaf() for child in structure.children())
    return structure.type if is_flat else None


def builder(structure: TreeSpec) -> Build:
    """Give the function; tuples, lists and dictionaries are built directly, other things as their classes say."""
    return _part(structure, count()) or (lambda leaves: tree_unflatten(leaves, structure))


def _part(structure: TreeSpec, places: Iterator[int]) -> Build | None:
    if structure.is_leaf():
        place = next(places)
        return lambda leaves: leaves[place]
    flat = flat_kind(structure)
    if flat is not None:
        found = [next(places) for _ in structure.children()]
        here = slice(found[0], found[-1] + 1) if found else slice(0)
        return lambda leaves: flat(leaves[here])
    parts = [_part(child, places) for child in structure.children()]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if structure.type is tuple:
        return lambda leaves: tuple([part(leaves) for part in known])
    if structure.type is list:
        return lambda leaves: [part(leaves) for part in known]
    if structure.type is dict:
        names = tuple(structure.context)
        return lambda leaves: {name: part(leaves) for name, part in zip(names, known, strict=True)}
    return None
