"""Flatten the arguments of a call to leaves, with plain objects among them taken apart into their attributes.

A cache of keys and values is another object for each text, and so is a batch that is a dataclass. A program is for any
objects that are alike: of one class, with attributes of the same names, and what is in these is a leaf as any argument
is. What traced code is given is a copy; what it changes there, each run changes in the object of its own call.

Some objects stay whole, and a program is for that very one: what the function reaches by itself, what holds parameters
(it is a model, whose weights are packed once), what can be called, what is made of itself, what is of a library.
"""

from __future__ import annotations

import sys
from collections import UserDict, UserList, UserString
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from threading import local
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from weft.trace.interception.capture import AttributeKey, TreeSpec, is_node, register_node, tree_flatten
from weft.trace.python_state.containers import attributes, has_attributes, slots
from weft.trace.python_state.names import is_library
from weft.trace.python_state.trees import DICTIONARIES, LEAVES, ROWS, can_be_changed, children_of, with_items

MOST_ATTRIBUTES = 64  # of an object that is taken apart
MOST_PARTS = 4096  # of a call
DEEPEST = 24
MOST_SHAPES = 1024  # of which structures are kept
NONE_APART: Mapping[int, Any] = MappingProxyType({})
# Whose objects are what they are: told apart by `is`, or more than their attributes.
ENTIRE = (
    nn.Module, torch.Tensor, torch.optim.Optimizer, Enum, BaseException, type, ModuleType, Iterator, local,
    UserDict, UserList, UserString,
)  # fmt: skip
OF_PLAIN_MODULES = frozenset({"argparse", "types"})  # of the standard library, whose objects hold what users put there
MORE_THAN_ATTRIBUTES = ("__del__", "__call__", "__wrapped__", "__torch_function__", "__next__")


class Nesting(TreeSpec):
    """How leaves nest, with a hash that is computed once: signatures are looked up by it at each call."""

    __slots__ = ("hash_value",)
    hash_value: int

    def __init__(self, spec: TreeSpec) -> None:
        super().__init__(spec.type, spec.context, spec.children())  # type: ignore[arg-type]
        object.__setattr__(self, "hash_value", hash(spec))

    def __hash__(self) -> int:
        return self.hash_value

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))


@dataclass(frozen=True, slots=True, eq=False)
class FlatCall:
    """The arguments of one call, nested and flat."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    leaves: list[Any]
    structure: TreeSpec
    containers: Sequence[Any] = ()  # and objects that are taken apart, each place of one
    objects: Sequence[Any] = ()  # these alone

    @property
    def may_grow(self) -> bool:
        """Whether an object holds tensors, or has room for some: nothing, or an empty list or dictionary."""
        items = (item for thing in self.objects for item in attributes(thing).values())
        return any(
            isinstance(item, torch.Tensor) or item is None or (isinstance(item, (list, dict)) and not item)
            for item in items
        )


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """The class of an object, and which attributes it has."""

    kind: type
    names: tuple[str, ...]

    def make(self, values: Sequence[Any]) -> Any:
        """Make another one with these attributes, as copying does: nothing of the class is called."""
        if self.kind is SimpleNamespace:
            return SimpleNamespace(**dict(zip(self.names, values, strict=True)))
        made: Any = object.__new__(self.kind)
        own = attributes(made)
        for name, value in zip(self.names, values, strict=True):
            own[name] = value
        return made


@dataclass(frozen=True, slots=True, eq=False)
class ObjectNode:
    """An object that was taken apart; as a node of a tree it is built to an object of its class."""

    kind: ObjectKind
    values: list[Any]


register_node(
    ObjectNode,
    lambda node: (node.values, node.kind),
    lambda values, kind: kind.make(list(values)),
    flatten_with_keys_fn=lambda node: (
        [(AttributeKey(name), value) for name, value in zip(node.kind.names, node.values, strict=True)],
        node.kind,
    ),
)


class FlatArguments:
    """The leaves of a call, the containers and objects that they are in, and how they nest.

    Objects in `apart`, by identity, stay whole.
    """

    def __init__(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], apart: Mapping[int, Any] = NONE_APART
    ) -> None:
        self._given = (tuple(arguments), dict(keywords))
        whole = {*apart}
        while True:
            found = _Parts(whole)
            try:
                for thing in (*arguments, *keywords.values()):
                    found.add(thing, 0)
            except _WholeError as error:
                whole.add(error.outermost)
                continue
            break
        self.leaves, self.containers, self.objects = found.leaves, found.containers, found.objects
        self._shape = (len(arguments), tuple(keywords), tuple(found.shape))

    @property
    def structure(self) -> TreeSpec:
        """How the leaves nest."""
        try:
            found = _structures.get(self._shape)
        except TypeError:  # a class's own description of its nodes, which cannot be looked up
            return self._structure()
        if found is None:
            if len(_structures) >= MOST_SHAPES:
                _structures.clear()
            found = _structures[self._shape] = self._structure()
        return found

    def with_nodes(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with nodes in the place of objects that are taken apart."""
        arguments, keywords = self._given
        nodes = {id(thing) for thing in self.objects}
        named = {name: _with_nodes(thing, nodes) for name, thing in keywords.items()}
        return tuple([_with_nodes(thing, nodes) for thing in arguments]), named

    def _structure(self) -> TreeSpec:
        return Nesting(tree_flatten(self.with_nodes())[1])


_structures: dict[Any, TreeSpec] = {}


class _WholeError(Exception):
    """An object cannot be taken apart."""

    def __init__(self, outermost: int) -> None:
        self.outermost = outermost


class _Parts:
    """What was found in the arguments of a call so far."""

    def __init__(self, whole: set[int]) -> None:
        self.leaves: list[Any] = []
        self.shape: list[Any] = []  # of each node its kind, and how many are in it; None of a leaf
        self.containers: list[Any] = []  # each place of one, objects too
        self.objects: list[Any] = []
        self._whole = whole
        self._around: list[int] = []  # the objects that are being taken apart

    def add(self, thing: Any, depth: int) -> None:
        """Add a thing, and what is in it."""
        kind = type(thing)
        if kind in LEAVES:
            self.shape.append(None)
            self.leaves.append(thing)
            if kind is nn.Parameter and self._around:
                raise _WholeError(self._around[0])
            return
        if kind in ROWS:
            children: Any = thing
            self.shape.append((kind, len(thing)))
        elif kind in DICTIONARIES:
            children = list(thing.values())
            self.shape.append((kind, tuple(thing)))
        elif opens(thing) and id(thing) not in self._whole:
            self._add_object(thing, depth)
            return
        else:
            children = children_of(thing)
            if children is None:
                self.shape.append(None)
                self.leaves.append(thing)
                return
            self.shape.append((kind, tree_flatten(thing, is_leaf=lambda other: other is not thing)[1]))
        self.containers.append(thing)
        for child in children:
            self.add(child, depth + 1)

    def _add_object(self, thing: Any, depth: int) -> None:
        if id(thing) in self._around or depth > DEEPEST or len(self.leaves) > MOST_PARTS:
            raise _WholeError(self._around[0] if self._around else id(thing))
        own = attributes(thing)
        self.shape.append((type(thing), tuple(own)))
        self.containers.append(thing)
        self.objects.append(thing)
        self._around.append(id(thing))
        for value in list(own.values()):
            self.add(value, depth + 1)
        self._around.pop()


def _with_nodes(thing: Any, objects: set[int]) -> Any:
    """The same with nodes in the place of objects that are taken apart."""
    if id(thing) in objects:
        return ObjectNode(kind_of_object(thing), [_with_nodes(value, objects) for value in attributes(thing).values()])
    children = children_of(thing)
    return thing if children is None else with_items(thing, [_with_nodes(child, objects) for child in children])


def kind_of_object(thing: Any) -> ObjectKind:
    """The class of an object, and which attributes it has."""
    return ObjectKind(type(thing), tuple(attributes(thing)))


def opens(thing: Any) -> bool:
    """Whether an object is nothing but a class and attributes."""
    kind = type(thing)
    return _opens(kind) and not is_node(kind) and len(attributes(thing)) <= MOST_ATTRIBUTES  # type: ignore[arg-type]  # classes can be hashed


@lru_cache(maxsize=1024)
def _opens(kind: type) -> bool:
    if kind is SimpleNamespace:
        return True
    package = (kind.__module__ or "").partition(".")[0]
    if is_library(kind) or (package in sys.stdlib_module_names and package not in OF_PLAIN_MODULES):
        return False
    if issubclass(kind, ENTIRE) or any(name in vars(base) for base in kind.__mro__ for name in MORE_THAN_ATTRIBUTES):
        return False
    try:
        made = object.__new__(kind)
    except TypeError:  # it is more in memory than an object with attributes
        return False
    has_slots = any(map(slots, kind.__mro__))
    return has_attributes(made) and not (has_slots and hasattr(made, "__dict__"))


def containers_of(
    arguments: Sequence[Any], keywords: Mapping[str, Any], apart: Mapping[int, Any] = NONE_APART
) -> list[Any]:
    """The containers and objects among the arguments of a call, each place of one."""
    return FlatArguments(arguments, keywords, apart).containers


def aliases_of(containers: Sequence[Any]) -> tuple[int, ...]:
    """For each container among the arguments the first place of the very same one; nothing where all differ."""
    if len(containers) < 2:
        return ()
    first: dict[int, int] = {}
    found = tuple(
        first.setdefault(id(container) if can_be_changed(container) else -place, place)
        for place, container in enumerate(containers)
    )
    return () if len(first) == len(found) else found
