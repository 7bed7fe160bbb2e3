"""Take arguments, results and effects apart into tensors, plain values and references to objects of before.

What a run gives back, and what it puts in Python objects, is built anew from the tensors of that run. Objects that the
code only passes on are not built: a container among the arguments is the one of that call, one that the function
reaches by itself is the one that is in its place then. A new object that is left in two places is made once.

PyTorch's trees end at objects they do not know (a dataclass, a dictionary of a class of its own, a distribution). What
such an object consists of is asked as `copy.copy` asks: a function that makes it, its state, its items.
"""

from __future__ import annotations

import gc
import sys
import types
from argparse import Namespace
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from threading import local
from types import MappingProxyType, SimpleNamespace
from typing import Any
from weakref import ReferenceType

import torch

from weft.trace.interception.builtin_names import StandInIdentity
from weft.trace.interception.capture import TreeSpec, is_stand_in, register_node, tree_flatten, tree_unflatten
from weft.trace.interception.refusals import refuse, refuse_registered
from weft.trace.python_state.containers import attributes, has_attributes, look, slots
from weft.trace.python_state.draws import is_drawn_from
from weft.trace.python_state.facts import BUFFERS, SIMPLE, WHOLE
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.names import is_library
from weft.trace.python_state.reachable import PythonState

LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, bool, int, float, complex, str, bytes, type(None)})
ROWS = (list, tuple, deque)
DICTIONARIES = (dict, OrderedDict, defaultdict)


def children_of(thing: Any) -> list[Any] | None:
    """What is directly in a node of PyTorch's trees; None of a leaf."""
    kind = type(thing)
    if kind in LEAVES:
        return None
    if kind in ROWS:
        return list(thing)
    if kind in DICTIONARIES:
        return list(thing.values())
    children, structure = _taken_apart(thing)
    return None if structure.is_leaf() else children


def _taken_apart(thing: Any) -> tuple[list[Any], TreeSpec]:
    return tree_flatten(thing, is_leaf=lambda other: other is not thing)


def can_be_changed(container: Any) -> bool:
    """Whether code can put other things in a container."""
    return not isinstance(container, tuple)


def with_items(thing: Any, items: list[Any]) -> Any:
    """A container of the same kind with other items."""
    kind = type(thing)
    if kind is list:
        return items
    if kind is tuple:
        return tuple(items)
    if kind is deque:
        return deque(items, thing.maxlen)
    if kind is dict:
        return dict(zip(thing, items, strict=True))
    return tree_unflatten(items, _taken_apart(thing)[1])


NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)  # what stands for a number
ENTIRE = (*SIMPLE, *NUMBERS, *WHOLE, torch.Tensor, torch.Size)  # what is never taken apart
UNRUN = (Iterator, AsyncIterator, Awaitable)  # what they will give is not known
LATER = (*UNRUN, types.FunctionType)  # what still has to run
DEEPEST = 8
# Of the standard library, whose objects are what is in them.
PLAIN_MODULES = frozenset({"builtins", "collections", "types", "argparse", "array", "numpy"})
PLAIN_KINDS = (set, *BUFFERS, dict, UserDict, UserList, ChainMap, SimpleNamespace, Namespace)
TOLD_APART = (Enum, BaseException, Iterator, local, type, ReferenceType)  # or more than their attributes
STAND_IN_TEXTS = ("FakeTensor(..., size=", "StandIn(..., size=")  # how PyTorch writes a tensor without elements
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


def _nothing(thing: Any) -> bool:
    del thing
    return False


@dataclass(frozen=True, slots=True)
class _Opening:
    """How trees are taken apart: what is a leaf whatever it holds, and what each run makes anew."""

    is_leaf: Callable[[Any], bool]
    is_made: Callable[[Any], bool]

    def opened(self, tree: Any, depth: int = 0) -> Any:
        """The tree, with objects taken apart."""
        leaves, structure = tree_flatten(tree, is_leaf=self.is_leaf)
        kinds = [self._kind(leaf) for leaf in leaves] if depth <= DEEPEST else ()
        if not any(kinds):
            return tree
        return tree_unflatten([self._open(*pair, depth) for pair in zip(leaves, kinds, strict=True)], structure)

    def _kind(self, leaf: Any) -> str | None:
        if _is_whole(leaf) or self.is_leaf(leaf):
            return None
        return "holds" if _holds_stand_in(leaf, 0, set(), NUMBERS) else "made" if self.is_made(leaf) else None

    def _open(self, leaf: Any, kind: str | None, depth: int) -> Any:
        if kind is None:
            return leaf
        try:
            copy(leaf)
            reduced = leaf.__reduce_ex__(PROTOCOL)
        except Exception:  # noqa: BLE001 - whatever its class raises
            reduced = ""
        if isinstance(reduced, str) or isinstance(leaf, LATER):
            if kind == "made":
                return leaf
            if isinstance(leaf, Coroutine):
                leaf.close()  # else Python warns that nobody has awaited it
            refuse("foreign result", None, detail=type(leaf).__name__)
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = (arguments, state, list(items or ()), list(pairs or ()))
        return Opened(Maker(type(leaf), function), self.opened(parts, depth + 1))


def opened(tree: Any, is_leaf: Callable[[Any], bool] = _nothing, is_made: Callable[[Any], bool] = _nothing) -> Any:
    """The tree, with objects that hold stand-ins, or are made by each run, taken apart; leaves stay."""
    return _Opening(is_leaf, is_made).opened(tree)


def is_changeable(thing: Any) -> bool:
    """Whether a thing that code makes can be changed by whoever gets it, so that each run must make another one."""
    kind = type(thing)
    if isinstance(thing, (*ENTIRE, *TOLD_APART)) or callable(thing):
        return False
    if is_library(kind) or kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        return kind.__module__ in PLAIN_MODULES and isinstance(thing, PLAIN_KINDS)
    return isinstance(thing, (set, dict, list)) or has_attributes(thing)


def has_stand_in(things: Iterable[Any]) -> bool:
    """Whether a stand-in can be reached from any of these things."""
    return any(_holds_stand_in(thing, 0, set()) for thing in things)


def _is_whole(thing: Any) -> bool:
    return isinstance(thing, ENTIRE)


def _holds_stand_in(thing: Any, depth: int, seen: set[int], kinds: tuple[type, ...] = ()) -> bool:
    """Whether a stand-in of a tensor, or what is of these kinds, can be reached by attributes and items."""
    if is_stand_in(thing) or isinstance(thing, (*UNRUN, *kinds)):
        return True
    if isinstance(thing, ReferenceType):
        return is_stand_in(thing())
    if _is_whole(thing) or depth > DEEPEST or id(thing) in seen:
        return False
    seen.add(id(thing))
    parts = chain(_attributes(thing), _items(thing), _referents(thing))
    return any(_holds_stand_in(part, depth + 1, seen, kinds) for part in parts)


def _attributes(thing: Any) -> list[Any]:
    names = [name for kind in type(thing).__mro__ for name in slots(kind)]
    found = [getattr(thing, name, None) for name in names]
    own = getattr(thing, "__dict__", None)
    found += own.values() if isinstance(own, (dict, types.MappingProxyType)) else ()  # some give something for any name
    if isinstance(thing, types.FunctionType):
        found += [look(cell, None) for cell in thing.__closure__ or ()]
        found += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
    return found


def _items(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        return list(thing.values())
    return list(thing) if isinstance(thing, (list, tuple, set, frozenset)) else []


def _referents(thing: Any) -> list[Any]:
    """What an object holds that is no attribute of it, as methods, partial functions and slices do.

    Not of a function, which refers to all of its module.
    """
    return [] if isinstance(thing, types.FunctionType) else gc.get_referents(thing)


def _set_state(thing: Any, state: Any) -> None:
    if hasattr(thing, "__setstate__"):
        thing.__setstate__(state)
        return
    plain, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if plain:
        thing.__dict__.update(plain)
    for name, value in (slots or {}).items():
        setattr(thing, name, value)


def refuse_text_of_stand_in(leaf: Any) -> None:
    """Refuse to leave behind what was made of a stand-in, and should have been made of its tensor."""
    if isinstance(leaf, StandInIdentity):
        refuse("identity", None)
    if is_drawn_from(leaf):
        refuse("python draw", None)
    if type(leaf) is str and any(text in leaf for text in STAND_IN_TEXTS):
        refuse("text", None)


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A returned tensor: which result of the Graph, and whether it carries a gradient."""

    index: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class GivenLeaf:
    """A container among the arguments of the call."""

    place: int


@dataclass(frozen=True, slots=True)
class HeldLeaf:
    """What a place that the function reaches by itself held before the run."""

    number: int


@dataclass(frozen=True, slots=True)
class MadeLeaf:
    """An object that a run makes once, and leaves in several places."""

    number: int


REFERENCES = (GivenLeaf, HeldLeaf, MadeLeaf)


def is_size(leaf: Any) -> bool:
    """Whether a returned object is a tensor's size, which a tree of results would give back as a plain tuple."""
    return isinstance(leaf, torch.Size)


class TakenApart:
    """Takes `trees` apart, all that one trace leaves.

    Objects of `state` were there before, and so were containers among the arguments: `given` has the place of each.
    """

    def __init__(
        self,
        trees: Iterable[Any] = (),
        state: PythonState | None = None,
        given: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._trees = (*trees,)  # objects are told apart by identity, which lasts as long as they do
        self._given = given
        self._state = state or PythonState()
        self.held: list[Slot] = []
        self.made: list[tuple[list[Any], TreeSpec]] = []
        self._references: dict[int, Any] = {}
        self._young: set[int] | None = None
        counts: Counter[int] = Counter()
        self._parts: dict[int, Any] = {}
        for tree in self._trees:
            self._count(tree, counts)
        self._shared = {key for key, count in counts.items() if count > 1}
        self.parts: tuple[Any, ...] = tuple(self._parts.values())  # what the code has made

    def flatten(self, tree: Any) -> tuple[list[Any], TreeSpec]:
        """The leaves of a tree, references among them, and how they nest."""
        return self._flatten(tree, None)

    def _flatten(self, tree: Any, root: Any) -> tuple[list[Any], TreeSpec]:
        def stops(node: Any) -> bool:
            return is_size(node) or self._is_known(node) or (id(node) in self._shared and node is not root)

        leaves, structure = tree_flatten(opened(tree, stops, self._is_made), is_leaf=stops)
        if root is not None and not structure.is_leaf() and any(leaf is root for leaf in leaves):
            refuse("foreign result", None, detail=type(root).__name__)  # it holds itself
        return [leaf if leaf is root else self._leaf(leaf) for leaf in leaves], structure

    def _is_known(self, node: Any) -> bool:
        return id(node) in self._given or id(node) in self._state.homes or id(node) in self._state.visited

    def _is_made(self, thing: Any) -> bool:
        """Whether the code has made a thing that can be changed, so that each run makes another one.

        What was there before a trace is no longer among the youngest objects of the collector.
        """
        if not is_changeable(thing) or self._is_known(thing):
            return False
        if not gc.is_tracked(thing):
            return id(thing) not in self._state.containers
        if self._young is None:
            self._young = {id(one) for one in gc.get_objects(generation=0)}
        return id(thing) in self._young

    def _leaf(self, leaf: Any) -> Any:
        refuse_text_of_stand_in(leaf)
        if isinstance(leaf, torch.nn.Module) and any(map(is_stand_in, chain(leaf.parameters(), leaf.buffers()))):
            raise refuse_registered(f"a {type(leaf).__name__}")
        key = id(leaf)
        if key in self._given:
            return GivenLeaf(self._given[key])
        if key not in self._references:
            slot, of_object = self._state.homes.get(key, (None, True))
            if slot is not None and not of_object:
                self._references[key] = HeldLeaf(len(self.held))
                self.held.append(slot)
            elif key in self._shared and not self._is_known(leaf):
                self._references[key] = MadeLeaf(len(self.made))
                self.made.append(([], None))  # type: ignore[arg-type]  # what is inside may be numbered first
                self.made[self._references[key].number] = self._flatten(leaf, leaf)
            else:
                return leaf
        return self._references[key]

    def _count(self, thing: Any, counts: Counter[int]) -> None:
        if isinstance(thing, ENTIRE) or self._is_known(thing):
            return
        children = children_of(thing)
        if children is None:
            if not (self._is_made(thing) or (has_attributes(thing) and not callable(thing) and has_stand_in([thing]))):
                return
            children = list(attributes(thing).values()) if has_attributes(thing) else []
        for key in thing if isinstance(thing, dict) else ():
            refuse_text_of_stand_in(key)
        counts[id(thing)] += 1
        self._parts[id(thing)] = thing
        if counts[id(thing)] == 1:
            for child in children:
                self._count(child, counts)
