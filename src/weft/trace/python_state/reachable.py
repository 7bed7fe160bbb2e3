"""Walk what a module or function can reach: the places of its tensors, and the Python facts a program relies on.

A program reads a parameter where the module keeps it, at every call: replacing it is seen. What else Python code may
have looked at while it was traced (training flags, attributes, submodules, hooks, global and closed-over names, and the
attributes of plain objects and of the user's classes that it mentions) is remembered and compared.
"""

from __future__ import annotations

import os
import random
import types
from collections import UserDict, UserList, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import Field, dataclass, field, replace
from functools import lru_cache, partial
from inspect import getattr_static
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import nn

from weft.trace.interception.builtin_names import NAMES
from weft.trace.interception.capture import is_stand_in
from weft.trace.interception.refusals import unmaterialised
from weft.trace.python_state.containers import (
    MISSING,
    OfContext,
    OfFunction,
    Touched,
    attributes,
    behind,
    class_dictionary,
    has_attributes,
    identity,
    look,
    put,
)
from weft.trace.python_state.facts import (
    APART,
    BUFFERS,
    HOOKS,
    REGISTRIES,
    SIMPLE,
    UNTOUCHED,
    ModuleFacts,
    NameFact,
    SettingFact,
    TensorTies,
    can_change,
    container_kind,
    join,
    module_facts,
    name_fact,
    setting_facts,
)
from weft.trace.python_state.names import (
    Place,
    binds_globals,
    compares_identity,
    given,
    global_names,
    is_installed,
    is_library,
    mentioned,
    reached,
)

DEEPEST = 6
UNMENTIONED = """
    call getattr getattribute get getitem contains len iter bool eq ne lt le gt ge hash enter exit index int float
    add radd sub rsub mul rmul matmul rmatmul truediv rtruediv floordiv rfloordiv mod pow rpow neg pos abs
    setitem delitem setattr delattr set delete missing next reversed and or xor rand ror rxor invert divmod round
    iadd isub imul imatmul itruediv ifloordiv imod ipow iand ior ixor str repr format complex
"""
# Containers that keep what is in them in an attribute.
WRAPPED = (UserDict, UserList, WeakKeyDictionary, WeakValueDictionary)
LISTED = (list, tuple, dict, deque)
LONGEST_INSIDE = 256  # of a container inside of another one, what is still looked into
# Methods that run without being mentioned.
IMPLICIT = frozenset(f"__{name}__" for name in UNMENTIONED.split())
SOURCES = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
OF_CONTAINERS = (types.BuiltinMethodType, types.MethodWrapperType)  # features.__setitem__, rows.append
CACHED = type(lru_cache(lambda: None))
TELLS_APART = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "_parameters", "_buffers", "id"}
)
ATTRIBUTE_QUESTIONS = frozenset({"getattr", "hasattr"})
OF_ENVIRONMENT = frozenset({"environ", "getenv"})
ENVIRONMENT = vars(os)["environ"]  # read by code that is traced, not by Weft
HOOKED = torch.nn.modules.module
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip
Fact = ModuleFacts | NameFact | SettingFact


@dataclass(frozen=True, slots=True, eq=False)
class Location:
    """A place that holds a tensor: an entry of a dictionary or list, or a closure's cell.

    One inside of what another place holds is looked for there: runs may put other things in that place.
    """

    container: Any
    key: Any
    path: str
    registered: bool = False
    owner: type | None = None  # the class whose attributes the dictionary is
    parent: Location | None = None
    is_attribute: bool = False  # of what the parent holds, or was given; else an item of it
    given: int | None = None  # it is in a container among the arguments of each call, the one with this number

    def get(self) -> Any:
        """What is there now: a tensor, unless somebody put something else there."""
        return look(self.holder(), self.key)

    def at(self, key: Any) -> Location:
        """Another place in the same container."""
        return replace(self, key=key, path=f"{key!r} of {self.path}")

    def is_at(self, other: Location) -> bool:
        """Whether it is the same place."""
        return identity(self.container) == identity(other.container) and bool(self.key == other.key)

    def holder(self, given: Sequence[Any] = ()) -> Any:
        """What this place is in now, in a call with these containers among its arguments."""
        if self.given is not None:
            return attributes(given[self.given]) if self.is_attribute else given[self.given]
        if self.parent is None:
            return self.container
        held = self.parent.get()
        return attributes(held) if self.is_attribute and has_attributes(held) else held

    def chain(self) -> list[Location]:
        """The places from this one out."""
        return [self, *(self.parent.chain() if self.parent is not None else ())]

    def moves(self, touched: Touched) -> bool:
        """Whether runs put other things here, or in a place that this one is inside of."""
        return any(slot.key in touched.given(slot.container) for slot in self.chain())

    def let_go(self, touched: Touched) -> Location:
        """The same without what is inside of places that runs give other things."""
        if self.parent is None or not self.parent.moves(touched):
            return self
        return replace(self, container=None, parent=self.parent.let_go(touched))

    def put(self, thing: Any) -> None:
        """Put something where the walk found this place; MISSING is nothing."""
        if self.owner is None:
            put(self.container, self.key, thing)
        # Through the class: it has to know that an attribute has changed.
        elif thing is MISSING:
            delattr(self.owner, self.key)
        else:
            setattr(self.owner, self.key, thing)


@dataclass(slots=True, eq=False)
class PythonState:
    """Everything found from some modules, functions and objects."""

    roots: tuple[Any, ...] = ()
    slots: dict[int, Location] = field(default_factory=dict)
    places: dict[int, list[Location]] = field(default_factory=lambda: defaultdict(list))  # of each thing, all of them
    modules: dict[nn.Module, str] = field(default_factory=dict)
    names: dict[tuple[int, Any], NameFact] = field(default_factory=dict)
    generators: list[torch.Generator] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)  # of random numbers that Python or NumPy draw
    iterators: list[Location] = field(default_factory=list)
    stand_ins: list[Location] = field(default_factory=list)
    caches: list[Any] = field(default_factory=list)  # functions that remember their results
    containers: dict[int, Any] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)
    asks_identity: bool = False  # code compares things by `is`, which may be a tensor that it is given and its own
    objects: list[tuple[Any, str, Location | None]] = field(default_factory=list)
    classes: dict[type, None] = field(default_factory=dict)
    namespaces: dict[int, dict[str, Any]] = field(default_factory=dict)  # global names of code that asks for classes
    visited: dict[int, Any] = field(default_factory=dict)
    looked_into: dict[int, Any] = field(default_factory=dict)
    homes: dict[int, tuple[Location, bool]] = field(default_factory=dict)  # of a container, where it or its object is

    def facts(self, touched: Touched = UNTOUCHED) -> list[Fact]:
        """The facts as they are now; of what is `touched` none, or the outline alone."""
        modules = [module_facts(module, path, touched, self.mentioned) for module, path in self.modules.items()]
        if modules and self.tells_tensors_apart():
            places = [place for places in self.places.values() for place in places if place.registered]
            modules[0] = replace(modules[0], ties=TensorTies.of([place.get for place in places]))
        names = (fact for fact in self.names.values() if fact.key not in (touched.keys(fact.container) or ()))
        given = (fact.without(touched) for fact in (*names, *self._of_given(touched)))
        return [*modules, *given, *setting_facts(self.mentioned)]

    def tells_tensors_apart(self) -> bool:
        """Whether code may ask which of the tensors that it reaches are the very same one."""
        return self.asks_identity or not TELLS_APART.isdisjoint(self.mentioned)

    def _of_given(self, touched: Touched) -> Iterator[NameFact]:
        """Places that runs put tensors in, and that no name has led to: nothing was there yet."""
        apart = {id(entry) for module in self.modules for entry in (module.__dict__, module.__dict__["_buffers"])}
        for container, keys in touched.every_given():
            known = identity(container)
            if known in self.containers and known not in self.looked_into and known not in apart:
                for key in (key for key in keys if (known, key) not in self.names):
                    path = "a closed-over name" if key is None else str(key)
                    yield name_fact((container, key, path, look(container, key)))

    def slot(self, tensor: torch.Tensor) -> Location:
        """Where a tensor lives; one that was reached in a way that this walk does not know is held by itself."""
        return self.slots.get(id(tensor)) or Location([tensor], 0, "a captured tensor")

    def inside(self, container: Any, key: Any) -> Location:
        """A place in a container, which is looked for where it was found, as far as that is known."""
        home, of_object = self.homes.get(identity(container), (None, False))
        return Location(container, key, self._path(container, key), parent=home, is_attribute=of_object)

    def _path(self, container: Any, key: Any) -> str:
        """What a place is called."""
        fact = self.names.get((identity(container), key))
        if fact is not None:
            return fact.path
        home, of_object = self.homes.get(identity(container), (None, False))
        owner = next((path for module, path in self.modules.items() if module.__dict__ is container), None)
        if owner is not None or (home is not None and of_object):
            return join(owner or (home.path if home is not None else ""), str(key))
        name = home.path if home is not None else ""
        return name if key is None else f"{name}[{key!r}]" if name else str(key)

    def shared(self, slots: Iterable[Location]) -> list[tuple[Location, Location]]:
        """Places of the same tensor, and of what these slots are inside of, pair by pair."""
        outer = {id(place.get()): place.get() for slot in slots for place in slot.chain()[1:]}
        groups = [
            [place for place in places if id(place.get()) == key]
            for key, places in self.places.items()
            if len(places) > 1 and (key in outer or isinstance(places[0].get(), torch.Tensor))
        ]
        return [(one, other) for one, *others in filter(None, groups) for other in others]

    def reaches(self, thing: Any) -> bool:
        """Whether an object was found, or is a key of a dictionary that was."""
        if id(thing) in self.visited:
            return True
        tables = (table for table in self.containers.values() if isinstance(table, dict))
        return any(
            thing is key or (isinstance(key, ReferenceType) and key() is thing) for table in tables for key in table
        )

    def may_write(self, tensor: torch.Tensor) -> bool:
        """Whether a program may write into this tensor: each run has to find the one that is there then."""
        return id(tensor) in self.slots


def find_state(*roots: Any) -> PythonState:
    """Walk what modules, functions and objects can reach by attribute, closure and global name."""
    state = PythonState(roots)
    for root in roots:
        if container_kind(root) is not None or isinstance(root, (*BUFFERS, *WRAPPED)):
            # An argument of a class derived from a container is no node of a tree: what is in it is a place like any.
            name = f"a {type(root).__name__}"
            _visit_name(state, Location((root,), 0, name), root, 0)
        else:
            _visit(state, root, "", 0)
    # Which attributes of objects and classes matter is known when all code has been seen; they may lead to more code.
    seen = -1
    while seen != (seen := len(state.mentioned) + len(state.objects) + len(state.classes)):
        for thing, path, slot in list(state.objects):
            own = attributes(thing)
            for name in sorted(state.mentioned.intersection(own)):
                place = Location(own, name, join(path, name), parent=slot, is_attribute=True)
                _visit_name(state, place, own[name], 1)
        for kind in list(state.classes):
            _visit_class(state, kind)
        if state.modules:
            _visit_settings(state)
    _visit_tensor_attributes(state)
    if not OF_ENVIRONMENT.isdisjoint(state.mentioned):
        held = vars(ENVIRONMENT)
        known = (held, "_data", "the environment of the process", held["_data"])
        state.names.setdefault((id(held), "_data"), name_fact(known))
    return state


def waits_for_sizes(state: PythonState) -> bool:
    """Whether a first call would materialise parameters or buffers of lazy modules."""
    return any(unmaterialised(slot.get()) for slot in state.slots.values())


def _visit_tensor_attributes(state: PythonState) -> None:
    """Visit the Python attributes of tensors; where code may ask for some that are not there, of all tensors."""
    asks = not ATTRIBUTE_QUESTIONS.isdisjoint(state.mentioned)
    for slot in list(state.slots.values()):
        own = getattr(slot.get(), "__dict__", None)
        if own or (asks and own is not None):
            place = ((own,), 0, f"attributes of {slot.path}", own)
            state.names.setdefault((id(own), 0), name_fact(place))


def _visit_settings(state: PythonState) -> None:
    """Visit what all modules read: hooks that run at every module's call, and how attention is computed."""
    for module, name in (*((HOOKED, name) for name in GLOBAL_HOOKS), (torch.backends.mha, "_is_fastpath_enabled")):
        own = vars(module)
        if name in own:
            place = (own, name, name.removeprefix("_").replace("_", " "), own[name])
            state.names.setdefault((id(own), name), name_fact(place))
            for hook in list(own[name].values()) if isinstance(own[name], dict) else ():
                _visit(state, hook, name, 1)


def _add_class(state: PythonState, kind: type) -> None:
    """Add a class, and those that it is derived from, of the user's; installed ones keep their attributes."""
    own = (base for base in kind.__mro__ if not (is_library(base) or is_installed(base.__module__)))
    state.classes.update((base, None) for base in own)


def _visit_class(state: PythonState, kind: type) -> None:
    """Visit what code mentions of a class's attributes: values of any kind, and methods."""
    own = class_dictionary(kind)
    _add_containers(state, own)
    for name in sorted(state.mentioned & own.keys()):
        value, path = own[name], f"{kind.__name__}.{name}"
        if isinstance(value, torch.Tensor):
            _visit_tensor(state, Location(own, name, path, owner=kind), value)
            continue
        state.names.setdefault((id(own), name), name_fact((own, name, path, value), of_class=True))
        if type(value) in SIMPLE or container_kind(value):
            _visit_container(state, Location(own, name, path, owner=kind), value, 1)
        elif _visit_method(state, value, 1) is None:
            _visit(state, value, path, 1)
    for name in sorted(own.keys() & IMPLICIT):
        _visit_method(state, own[name], 1)


def _visit(state: PythonState, thing: Any, path: str, depth: int, slot: Location | None = None) -> None:
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
        _add_containers(state, thing.__dict__)
        if thing.__dict__:
            state.objects.append((thing, path, slot))
    elif isinstance(thing, types.ModuleType):
        _add_containers(state, vars(thing))
    elif isinstance(thing, OF_CONTAINERS):
        if container_kind(thing.__self__) is not None:
            _visit_name(state, Location((thing.__self__,), 0, f"{path}.__self__"), thing.__self__, depth)
    elif isinstance(thing, torch.Generator):
        state.generators.append(thing)
    else:
        _visit_object(state, thing, path, depth, slot)


def _visit_object(state: PythonState, thing: Any, path: str, depth: int, slot: Location | None) -> None:
    """Visit a class, an instance of one, or what wraps a function."""
    wrapped = _wrapped(thing)
    if isinstance(thing, SOURCES):
        state.sources.append(thing)
    elif isinstance(thing, ContextVar):
        _add_context(state, thing, path)
    elif wrapped is not None:
        if isinstance(thing, CACHED):
            state.caches.append(thing)
        _visit(state, wrapped, path, depth + 1)
    elif isinstance(thing, type):
        _add_class(state, thing)
    elif isinstance(thing, WRAPPED):
        own = attributes(thing)
        _add_containers(state, own)
        _visit_name(
            state, Location(own, "data", join(path, "data"), parent=slot, is_attribute=True), own["data"], depth + 1
        )
    elif _is_plain_object(thing):
        state.objects.append((thing, path, slot))
        own = attributes(thing)
        _add_containers(state, own)
        if slot is not None:
            state.homes.setdefault(identity(own), (slot, True))
        _add_class(state, type(thing))
        _visit_code(state, type(thing), "__call__", depth)


def _visit_module(state: PythonState, root: nn.Module, path: str, depth: int) -> None:
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
                    _visit_tensor(
                        state, Location(module.__dict__[registry], key, join(name, key), registered=True), tensor
                    )
        for key, value in list(module.__dict__.items()):
            if key not in APART:
                _visit_container(state, Location(module.__dict__, key, join(name, key)), value, depth)
        for hooks in HOOKS:
            for hook in list((module.__dict__.get(hooks) or {}).values()):
                _visit(state, hook, name, depth + 1)
        _visit_code(state, type(module), "forward", depth)


def _visit_code(state: PythonState, kind: type, entry: str, depth: int) -> None:
    """Visit a method that Weft runs, and the methods of the same class that it mentions."""
    waiting, seen = [entry], {entry}
    while waiting:
        method = _visit_method(state, getattr(kind, waiting.pop(), None), depth)
        if method is None:
            continue
        names = mentioned(method.__code__) - seen
        seen |= names
        waiting += sorted(names)


def _visit_method(state: PythonState, found: Any, depth: int) -> types.FunctionType | None:
    """Visit what a class's attribute runs, if it is a method of the user's."""
    if isinstance(found, CACHED):
        state.caches.append(found)
    method = _function(found)
    if method is None or is_library(method):
        return None
    _visit(state, method, "", depth + 1)
    return method


def _wrapped(thing: Any) -> Any:
    """What a wrapper is around; None if a thing is none. It is found without running code of the user's."""
    kinds = (*type(thing).__mro__, *(thing.__mro__ if isinstance(thing, type) else ()))
    if any("__wrapped__" in vars(kind) for kind in kinds):
        return getattr_static(thing, "__wrapped__", None)  # a tenth of the speed: it knows about descriptors
    return None if isinstance(thing, type) or not has_attributes(thing) else attributes(thing).get("__wrapped__")


def _function(found: Any) -> types.FunctionType | None:
    found = found.fget if isinstance(found, property) else found
    found = getattr(found, "__func__", found)
    if found is not None and not isinstance(found, types.FunctionType):
        found = _wrapped(found)
    return found if isinstance(found, types.FunctionType) else None


def _add_containers(state: PythonState, *containers: Any) -> None:
    state.containers.update((identity(container), container) for container in containers)


def _visit_tensor(state: PythonState, slot: Location, tensor: torch.Tensor) -> None:
    if is_stand_in(tensor):
        state.stand_ins.append(slot)
    else:
        state.slots.setdefault(id(tensor), slot)
        state.places[id(tensor)].append(slot)


def _visit_container(state: PythonState, slot: Location, value: Any, depth: int) -> None:
    """Visit what a place of any kind holds."""
    if isinstance(value, torch.Tensor):
        _visit_tensor(state, slot, value)
    elif (kind := container_kind(value)) in LISTED:
        _add_containers(state, value)
        state.places[id(value)].append(slot)
        if id(value) not in state.looked_into:
            state.looked_into[id(value)] = value
            state.homes.setdefault(id(value), (slot, False))
            _visit_items(state, slot, value, depth)
    elif kind is not None or isinstance(value, BUFFERS):
        _add_containers(state, value)
    elif (inner := behind(value)) is not None:
        _visit_name(state, Location((inner,), 0, slot.path), inner, depth)
    elif isinstance(value, Iterator):
        state.iterators.append(slot)
    elif isinstance(value, ContextVar):
        _add_context(state, value, slot.path)
    elif type(value) not in SIMPLE:
        state.places[id(value)].append(slot)
        _visit(state, value, slot.path, depth, slot)


def _visit_items(state: PythonState, slot: Location, value: Any, depth: int) -> None:
    kind = container_kind(value)
    if slot.parent is None or (depth <= DEEPEST and kind.__len__(value) <= LONGEST_INSIDE):
        for name, item in list(dict.items(value) if kind is dict else enumerate(kind.__iter__(value))):
            if type(item) not in SIMPLE:
                place = Location(value, name, f"{slot.path}[{name!r}]", parent=slot)
                _visit_container(state, place, item, depth + 1)
    if type(value) is not kind:
        _visit(state, value, slot.path, depth + 1, slot)  # a class of the user's may have attributes too


def _visit_function(state: PythonState, function: types.FunctionType, depth: int) -> None:
    state.mentioned.update(mentioned(function.__code__))
    if not NAMES.keys().isdisjoint(global_names(function.__code__)):
        state.namespaces[id(function.__globals__)] = function.__globals__
    if binds_globals(function.__code__):
        _add_containers(state, function.__globals__)
    state.asks_identity = state.asks_identity or compares_identity(function.__code__)
    made_of = OfFunction(function)
    for key, part in made_of.items():
        place = (made_of, key, f"{function.__name__}.{key}", part)
        state.names.setdefault((identity(made_of), key), name_fact(place))
    _add_containers(state, made_of)
    for container, key, path, value in reached(function):
        _visit_name(state, Location(container, key, path), value, depth)
    _visit_given(state, given(function.__defaults__ or (), function.__kwdefaults__ or {}), depth)


def _visit_given(state: PythonState, places: Iterable[Place], depth: int) -> None:
    """Visit what functions were given before they are called: always the same, but what it holds may change."""
    for container, key, path, value in places:
        if can_change(value) or isinstance(container, dict):
            _visit_name(state, Location(container, key, path), value, depth)
        else:
            _visit_container(state, Location(container, key, path), value, depth)


def _visit_name(state: PythonState, slot: Location, value: Any, depth: int) -> None:
    if is_library(value):
        if not isinstance(value, types.ModuleType) and not _is_usual_name(slot, value):
            state.names.setdefault(
                (identity(slot.container), slot.key), name_fact((slot.container, slot.key, slot.path, value))
            )
        return
    _add_containers(state, slot.container)
    if not isinstance(value, torch.Tensor):
        place = (slot.container, slot.key, slot.path, value)
        state.names.setdefault((identity(slot.container), slot.key), name_fact(place))
    _visit_container(state, slot, value, depth)


def _is_usual_name(slot: Location, value: Any) -> bool:
    """Whether a function or class of a library stands under its own name, as an import leaves it."""
    return bool(slot.key == getattr(value, "__name__", ""))


def _add_context(state: PythonState, variable: ContextVar[Any], path: str) -> None:
    container = OfContext(variable)
    _visit_name(state, Location(container, "value", path), look(container, "value"), 1)


def _is_plain_object(thing: Any) -> bool:
    """Whether a thing is of a class of the user's, with attributes."""
    # Python itself keeps fields of dataclasses, which nobody changes once the class is there.
    no_object = isinstance(thing, (type, types.ModuleType, Field)) or is_library(type(thing))
    return not no_object and has_attributes(thing)
