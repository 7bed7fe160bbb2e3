"""A module or function -> where the tensors that it reaches live, and the Python facts that a program of it relies on.

A program reads a parameter where the module keeps it, at every call: replacing it is seen. What else Python code may
have looked at while it was traced (training flags, attributes, submodules, hooks, global and closed-over names, and the
attributes of plain objects and of the user's classes that it mentions) is remembered and compared.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from inspect import getattr_static
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from weft.trace.capture import is_stand_in
from weft.trace.containers import MISSING, Touched, attributes, class_dictionary, has_attributes, identity, look
from weft.trace.facts import (
    APART,
    BUFFERS,
    HOOKS,
    REGISTRIES,
    SIMPLE,
    UNTOUCHED,
    ModuleFacts,
    NameFact,
    can_change,
    container_kind,
    join,
    module_facts,
    name_fact,
)
from weft.trace.mentioned import Place, given, is_installed, is_library, mentioned, reached

DEEPEST = 6
UNMENTIONED = """
    call getattr getattribute get getitem contains len iter bool eq ne lt le gt ge hash enter exit index int float
    add radd sub rsub mul rmul matmul rmatmul truediv rtruediv floordiv rfloordiv mod pow rpow neg pos abs
"""
LISTED = (list, tuple, dict)
# Methods that run without being mentioned.
IMPLICIT = frozenset(f"__{name}__" for name in UNMENTIONED.split())
CACHED = type(lru_cache(lambda: None))
Fact = ModuleFacts | NameFact


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A place that holds a tensor: an entry of a dictionary or list, or a closure's cell."""

    container: Any
    key: Any
    path: str
    registered: bool = False
    owner: type | None = None  # the class whose attributes the dictionary is

    def get(self) -> Any:
        """What is there now: a tensor, unless somebody put something else there."""
        return look(self.container, self.key)

    def put(self, thing: Any) -> None:
        """Put something there; MISSING is nothing."""
        if isinstance(self.container, types.CellType):
            if thing is MISSING:
                del self.container.cell_contents
            else:
                self.container.cell_contents = thing
        elif self.owner is not None:
            # Through the class: it has to know that an attribute has changed.
            if thing is MISSING:
                delattr(self.owner, self.key)
            else:
                setattr(self.owner, self.key, thing)
        elif thing is MISSING:
            del self.container[self.key]
        else:
            self.container[self.key] = thing


@dataclass(slots=True, eq=False)
class State:
    """Everything found from some modules, functions and objects."""

    roots: tuple[Any, ...] = ()
    slots: dict[int, Slot] = field(default_factory=dict)
    modules: dict[nn.Module, str] = field(default_factory=dict)
    names: dict[tuple[int, Any], NameFact] = field(default_factory=dict)
    generators: list[torch.Generator] = field(default_factory=list)
    stand_ins: list[Slot] = field(default_factory=list)
    caches: list[Any] = field(default_factory=list)  # functions that remember their results
    containers: dict[int, Any] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)
    objects: list[tuple[Any, str]] = field(default_factory=list)
    classes: dict[type, None] = field(default_factory=dict)
    visited: dict[int, Any] = field(default_factory=dict)

    def facts(
        self, rebound: Mapping[int, frozenset[str]] = MappingProxyType({}), touched: Touched = UNTOUCHED
    ) -> list[Fact]:
        """The facts as they are now; `rebound` has the names that a program assigns to, by their dictionary."""
        modules = (
            module_facts(module, path, rebound.get(id(module.__dict__), frozenset()), touched)
            for module, path in self.modules.items()
        )
        names = (fact for fact in self.names.values() if fact.key not in (touched.keys(fact.container) or ()))
        return [*modules, *(fact.without(touched) if fact.is_open else fact for fact in names)]

    def slot(self, tensor: torch.Tensor) -> Slot:
        """Where a tensor lives; one that was reached in a way that this walk does not know is held by itself."""
        return self.slots.get(id(tensor)) or Slot([tensor], 0, "a captured tensor")

    def may_write(self, tensor: torch.Tensor) -> bool:
        """Whether a program may write into this tensor: a parameter or buffer of a module."""
        slot = self.slots.get(id(tensor))
        return slot is not None and slot.registered


def find_state(*roots: Any) -> State:
    """Walk what modules, functions and objects can reach by attribute, closure and global name."""
    state = State(roots)
    for root in roots:
        _visit(state, root, "", 0)
    # Which attributes of objects and classes matter is known when all code has been seen; they may lead to more code.
    seen = -1
    while seen != (seen := len(state.mentioned) + len(state.objects) + len(state.classes)):
        for thing, path in list(state.objects):
            own = attributes(thing)
            for name in sorted(state.mentioned & own.keys()):
                _visit_name(state, (own, name, join(path, name), own[name]), 1)
        for kind in list(state.classes):
            _visit_class(state, kind)
    return state


def _add_class(state: State, kind: type) -> None:
    """Add a class, and those that it is derived from, of the user's; installed ones keep their attributes."""
    own = (base for base in kind.__mro__ if not (is_library(base) or is_installed(base.__module__)))
    state.classes.update((base, None) for base in own)


def _visit_class(state: State, kind: type) -> None:
    """Visit what code mentions of a class's attributes: values of any kind, and methods."""
    own = class_dictionary(kind)
    _add_containers(state, own)
    for name in sorted(state.mentioned & own.keys()):
        value, path = own[name], f"{kind.__name__}.{name}"
        if isinstance(value, torch.Tensor):
            _visit_tensor(state, Slot(own, name, path, owner=kind), value)
            continue
        state.names.setdefault((id(own), name), name_fact((own, name, path, value), of_class=True))
        if type(value) in SIMPLE or container_kind(value):
            _visit_container(state, (own, name, path, value), 1)
        elif _visit_method(state, value, 1) is None:
            _visit(state, value, path, 1)
    for name in sorted(own.keys() & IMPLICIT):
        _visit_method(state, own[name], 1)


def _visit(state: State, thing: Any, path: str, depth: int) -> None:
    if depth > DEEPEST or id(thing) in state.visited:
        return
    if isinstance(thing, nn.Module):
        _visit_module(state, thing, path, depth)
        return
    state.visited[id(thing)] = thing
    if isinstance(thing, types.MethodType):
        _visit(state, thing.__self__, path, depth)
        _visit(state, thing.__func__, path, depth)
    elif isinstance(thing, partial):
        _visit(state, thing.func, path, depth + 1)
        _visit_given(state, given(thing.args, thing.keywords), depth)
    elif isinstance(thing, types.FunctionType):
        _visit_function(state, thing, depth)
    elif isinstance(thing, torch.Generator):
        state.generators.append(thing)
    else:
        _visit_object(state, thing, path, depth)


def _visit_object(state: State, thing: Any, path: str, depth: int) -> None:
    """Visit a class, an instance of one, or what wraps a function."""
    wrapped = getattr_static(thing, "__wrapped__", None)
    if wrapped is not None:
        if isinstance(thing, CACHED):
            state.caches.append(thing)
        _visit(state, wrapped, path, depth + 1)
    elif isinstance(thing, type):
        _add_class(state, thing)
    elif _is_plain_object(thing):
        state.objects.append((thing, path))
        _add_class(state, type(thing))
        _visit_code(state, type(thing), "__call__", depth)


def _visit_module(state: State, root: nn.Module, path: str, depth: int) -> None:
    for name, module in root.named_modules(prefix=path):
        if module in state.modules:
            continue
        state.visited[id(module)] = module
        state.modules[module] = name
        _add_class(state, type(module))
        _add_containers(state, module.__dict__, *(module.__dict__[registry] for registry in REGISTRIES))
        for registry in REGISTRIES:
            for key, tensor in module.__dict__[registry].items():
                if tensor is not None:
                    _visit_tensor(state, Slot(module.__dict__[registry], key, join(name, key), registered=True), tensor)
        for key, value in list(module.__dict__.items()):
            if key not in APART:
                _visit_container(state, (module.__dict__, key, join(name, key), value), depth)
        for hooks in HOOKS:
            for hook in list((module.__dict__.get(hooks) or {}).values()):
                _visit(state, hook, name, depth + 1)
        _visit_code(state, type(module), "forward", depth)


def _visit_code(state: State, kind: type, entry: str, depth: int) -> None:
    """Visit a method that Weft runs, and the methods of the same class that it mentions."""
    waiting, seen = [entry], {entry}
    while waiting:
        method = _visit_method(state, getattr(kind, waiting.pop(), None), depth)
        if method is None:
            continue
        names = set(mentioned(method.__code__)) - seen
        seen |= names
        waiting += sorted(names)


def _visit_method(state: State, found: Any, depth: int) -> types.FunctionType | None:
    """Visit what a class's attribute runs, if it is a method of the user's."""
    if isinstance(found, CACHED):
        state.caches.append(found)
    method = _function(found)
    if method is None or is_library(method):
        return None
    _visit(state, method, "", depth + 1)
    return method


def _function(found: Any) -> types.FunctionType | None:
    found = found.fget if isinstance(found, property) else found
    found = getattr(found, "__func__", found)
    if found is not None and not isinstance(found, types.FunctionType):
        found = getattr_static(found, "__wrapped__", None)
    return found if isinstance(found, types.FunctionType) else None


def _add_containers(state: State, *containers: Any) -> None:
    state.containers.update((identity(container), container) for container in containers)


def _visit_tensor(state: State, slot: Slot, tensor: torch.Tensor) -> None:
    if is_stand_in(tensor):
        state.stand_ins.append(slot)
    else:
        state.slots.setdefault(id(tensor), slot)


def _visit_container(state: State, place: Place, depth: int) -> None:
    """Visit what a name of any kind stands for."""
    container, key, path, value = place
    if isinstance(value, torch.Tensor):
        _visit_tensor(state, Slot(container, key, path), value)
    elif (kind := container_kind(value)) in LISTED:
        _add_containers(state, value)
        for name, item in list(dict.items(value) if kind is dict else enumerate(kind.__iter__(value))):
            if isinstance(item, torch.Tensor):
                _visit_tensor(state, Slot(value, name, f"{path}[{name!r}]"), item)
            elif type(item) not in SIMPLE:
                _visit(state, item, f"{path}[{name!r}]", depth + 1)
        if type(value) is not kind:
            _visit(state, value, path, depth + 1)  # a class of the user's may have attributes too
    elif kind is not None or isinstance(value, BUFFERS):
        _add_containers(state, value)
    elif type(value) not in SIMPLE:
        _visit(state, value, path, depth + 1)


def _visit_function(state: State, function: types.FunctionType, depth: int) -> None:
    state.mentioned.update(mentioned(function.__code__))
    for place in reached(function):
        _visit_name(state, place, depth)
    _visit_given(state, given(function.__defaults__ or (), function.__kwdefaults__ or {}), depth)


def _visit_given(state: State, places: Iterable[Place], depth: int) -> None:
    """Visit what functions were given before they are called: always the same, but what it holds may change."""
    for place in places:
        if can_change(place[3]):
            _visit_name(state, place, depth)
        else:
            _visit_container(state, place, depth)


def _visit_name(state: State, place: Place, depth: int) -> None:
    container, key, _, value = place
    if is_library(value):
        return
    _add_containers(state, container)
    if not isinstance(value, torch.Tensor):
        state.names.setdefault((identity(container), key), name_fact(place))
    _visit_container(state, place, depth)


def _is_plain_object(thing: Any) -> bool:
    """Whether a thing is of a class of the user's, with attributes."""
    no_object = isinstance(thing, (type, types.ModuleType)) or is_library(type(thing))
    return not no_object and has_attributes(thing)
