"""Objects of any class that hold tensors a trace has computed -> nodes of a tree, built again with each run's tensors.

PyTorch's trees end at objects they do not know (a dataclass, a dictionary of a class of its own, a distribution). What
such an object consists of is asked as `copy.copy` asks: a function that makes it, its state, its items.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from weft.trace.containers import look, slots
from weft.trace.facts import SIMPLE
from weft.trace.interception.capture import is_stand_in, register_node, tree_flatten, tree_unflatten
from weft.trace.interception.refusals import refuse

NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)  # what stands for a number
WHOLE = (*SIMPLE, *NUMBERS, torch.Tensor, torch.Size, nn.Module, torch.Generator, type, types.ModuleType)
LATER = (Iterator, types.FunctionType)  # what still has to run
DEEPEST = 8
PROTOCOL = 4  # of pickle, whose way to take objects apart this is


@dataclass(frozen=True, slots=True)
class Maker:
    """What makes an object of its parts; `kind` is its class."""

    kind: type
    function: Callable[..., Any]

    def make(self, arguments: Any, state: Any, items: list[Any], pairs: list[tuple[Any, Any]]) -> Any:
        """Make it."""
        made = self.function(*arguments)
        if state is not None:
            _set_state(made, state)
        if items:
            made.extend(items)
        for key, value in pairs:
            made[key] = value
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """An object, taken apart. As a node of a tree it is built to the object itself."""

    maker: Maker
    parts: tuple[Any, Any, list[Any], list[tuple[Any, Any]]]


register_node(
    Opened,
    lambda opened: (list(opened.parts), opened.maker),
    lambda parts, maker: maker.make(*parts),
)


def opened(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The tree, with objects that hold stand-ins taken apart; what `is_leaf` says is one stays."""
    return _opened(tree, is_leaf, 0)


def _opened(tree: Any, is_leaf: Callable[[Any], bool] | None, depth: int) -> Any:
    leaves, structure = tree_flatten(tree, is_leaf=is_leaf)
    others = (leaf for leaf in leaves if not (_is_whole(leaf) or (is_leaf is not None and is_leaf(leaf))))
    if depth > DEEPEST or not any(_holds_stand_in(leaf, 0, set()) for leaf in others):
        return tree
    return tree_unflatten([_open(leaf, is_leaf, depth) for leaf in leaves], structure)


def has_stand_in(things: Iterable[Any]) -> bool:
    """Whether a stand-in can be reached from any of these things."""
    return any(_holds_stand_in(thing, 0, set()) for thing in things)


def _open(leaf: Any, is_leaf: Callable[[Any], bool] | None, depth: int) -> Any:
    if _is_whole(leaf) or (is_leaf is not None and is_leaf(leaf)) or not _holds_stand_in(leaf, 0, set()):
        return leaf
    try:
        copy(leaf)
        reduced = leaf.__reduce_ex__(PROTOCOL)
    except Exception:  # noqa: BLE001 - whatever its class raises
        refuse("foreign result", None, detail=type(leaf).__name__)
    if isinstance(reduced, str) or isinstance(leaf, LATER):
        refuse("foreign result", None, detail=type(leaf).__name__)
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    parts = (arguments, state, list(items or ()), list(pairs or ()))
    return Opened(Maker(type(leaf), function), _opened(parts, is_leaf, depth + 1))


def _is_whole(thing: Any) -> bool:
    return isinstance(thing, WHOLE)


def _holds_stand_in(thing: Any, depth: int, seen: set[int]) -> bool:
    """Whether a stand-in can be reached by attributes and items."""
    if is_stand_in(thing) or isinstance(thing, Iterator):
        return True  # what an iterator will give is not known
    if _is_whole(thing) or depth > DEEPEST or id(thing) in seen:
        return False
    seen.add(id(thing))
    return any(_holds_stand_in(part, depth + 1, seen) for part in chain(_attributes(thing), _items(thing)))


def _attributes(thing: Any) -> list[Any]:
    names = [name for kind in type(thing).__mro__ for name in slots(kind)]
    found = [getattr(thing, name, None) for name in names]
    cells = [look(cell, None) for cell in getattr(thing, "__closure__", None) or ()]
    return [*found, *cells, *getattr(thing, "__dict__", {}).values()]


def _items(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        return list(thing.values())
    return list(thing) if isinstance(thing, (list, tuple, set, frozenset)) else []


def _set_state(thing: Any, state: Any) -> None:
    if hasattr(thing, "__setstate__"):
        thing.__setstate__(state)
        return
    plain, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if plain:
        thing.__dict__.update(plain)
    for name, value in (slots or {}).items():
        setattr(thing, name, value)
