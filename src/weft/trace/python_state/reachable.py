"""Walk what a module or function can reach: the places of its tensors, and the Python facts a program relies on.

A program reads a parameter where the module keeps it, at every call: replacing it is seen. What else Python code may
have looked at while it was traced (training flags, attributes, submodules, hooks, global and closed-over names, and the
attributes of plain objects and of the user's classes that it mentions) is remembered and compared.
"""

from __future__ import annotations

import logging
import os
import types
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from dataclasses import Field, dataclass, field, replace
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any
from weakref import ProxyTypes, ReferenceType, WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import nn
from typing_extensions import get_protocol_members, is_protocol

from weft.trace.interception.builtin_names import CALLED, NAMES, is_builtin_name, uncalled_names
from weft.trace.interception.capture import is_stand_in
from weft.trace.python_state.caches import CACHED, remembered
from weft.trace.python_state.containers import (
    AbsentNames,
    OfContext,
    OfDefaults,
    OfFunction,
    OfObject,
    OfPartial,
    Touched,
    attributes,
    behind,
    class_dictionary,
    has_attributes,
    identity,
    look,
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
    class_facts,
    container_kind,
    join,
    module_facts,
    name_fact,
    registries,
    setting_facts,
)
from weft.trace.python_state.library_names import (
    LibraryFact,
    in_library,
    kept_by_parametrize,
    library_facts,
    replaced,
)
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.names import (
    DISPATCHER,
    IMPLICIT,
    TELLS_APART,
    Place,
    asked_names,
    asks_by_computed_names,
    asks_kinds,
    binds_globals,
    compares_identity,
    function_of,
    given,
    global_names,
    implicit_names,
    in_class,
    is_foreign,
    is_installed,
    is_library,
    mentioned,
    reached,
    user_bases,
    wrapped_in,
)
from weft.trace.python_state.sources import OF_PROCESS, SOURCES, TAKEN

DEEPEST = 6
# Containers that keep what is in them in an attribute.
WRAPPED = (UserDict, UserList, WeakKeyDictionary, WeakValueDictionary, ChainMap)
LISTED, SETS = (list, tuple, dict, deque), (set, frozenset)
LONGEST_INSIDE = 256  # of a container inside of another one, what is still looked into
BUILTIN_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)
CODE = (types.FunctionType, types.MethodType, types.ModuleType, partial, type, nn.Module)
MOST_HOPS, MOST_UNMENTIONED = 2, 1 << 12
NAMING = (attrgetter, methodcaller)
OF_LOGGING = (logging.Filterer, logging.LoggerAdapter, logging.Manager)  # they know one another, handlers, streams
OF_LOGGERS = frozenset({"level", "disabled", "parent", "manager", "logger", "_disable"})
WITH_STATE = ("torch.distributions.", "torch.optim.")  # whose objects keep what others may replace
ATTRIBUTE_QUESTIONS = frozenset({"getattr", "hasattr"})
CLASS_QUESTIONS = frozenset({"isinstance", "issubclass"})
OF_ENVIRONMENT = frozenset({"environ", "getenv"})
ENVIRONMENT = vars(os)["environ"]  # read by code that is traced, not by Weft
ABSENCE_QUESTIONS = ATTRIBUTE_QUESTIONS | {"AttributeError", "Exception", "suppress"}
HOOKED = torch.nn.modules.module
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip
Fact = ModuleFacts | NameFact | SettingFact | LibraryFact


@dataclass(slots=True, eq=False)
class PythonState:
    """Everything found from some modules, functions and objects."""

    roots: tuple[Any, ...] = ()
    slots: dict[int, Slot] = field(default_factory=dict)
    places: dict[int, list[Slot]] = field(default_factory=lambda: defaultdict(list))  # of each thing, all of them
    modules: dict[nn.Module, str] = field(default_factory=dict)
    names: dict[tuple[int, Any], NameFact] = field(default_factory=dict)
    generators: list[torch.Generator] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)  # of random numbers that Python or NumPy draw
    iterators: list[Slot] = field(default_factory=list)
    unbound: dict[int, tuple[dict[str, Any], set[str]]] = field(default_factory=dict)  # global names that are not there
    bound: list[tuple[Slot, Any]] = field(default_factory=list)  # methods of generators and iterators
    stand_ins: list[Slot] = field(default_factory=list)
    references: list[tuple[Any, str, str | None]] = field(default_factory=list)  # weak ones, with where they are
    attribute: str | None = None  # of a module, inside of which the walk is
    caches: list[Any] = field(default_factory=list)  # functions that remember their results
    containers: dict[int, Any] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)
    asks_all: bool = False  # code may ask for any attribute of an object
    asks_kinds: bool = False  # of what kind a number is, so that nothing may stand for one
    asks_identity: bool = False  # code may find out by `is` or as a key that a tensor it is given is one of its own
    objects: list[tuple[Any, str, Slot | None]] = field(default_factory=list)
    hops: dict[int, int] = field(default_factory=dict)  # of objects: how many foreign ones away from what is mentioned
    hops_now: int = 0
    unmentioned: int = 0
    classes: dict[type, None] = field(default_factory=dict)
    namespaces: dict[int, dict[str, Any]] = field(default_factory=dict)  # global names of code that asks for classes
    naming: dict[int, frozenset[str]] = field(default_factory=dict)  # classes of builtins that this code names
    visited: dict[int, Any] = field(default_factory=dict)
    looked_into: dict[int, Any] = field(default_factory=dict)
    homes: dict[int, tuple[Slot, bool]] = field(default_factory=dict)  # of a container, where it or its object is

    def facts(self, touched: Touched = UNTOUCHED) -> list[Fact]:
        """The facts as they are now; of what is `touched` none, or the outline alone."""
        modules = [module_facts(module, path, touched, self.mentioned) for module, path in self.modules.items()]
        if modules and self.tells_tensors_apart():
            places = [place for places in self.places.values() for place in places if place.registered]
            modules[0] = replace(modules[0], ties=TensorTies.of([place.get for place in places]))
        names = (fact for fact in self.names.values() if fact.key not in (touched.keys(fact.container) or ()))
        beside = (_beside(fact, touched) for fact in names)
        given = (fact.without(touched) for fact in (*beside, *self._of_given(touched)) if fact is not None)
        return [*modules, *given, *setting_facts(self.mentioned), *library_facts()]

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

    def slot(self, tensor: torch.Tensor) -> Slot:
        """Where a tensor lives; one that was reached in a way that this walk does not know is held by itself."""
        return self.slots.get(id(tensor)) or Slot([tensor], 0, "a captured tensor")

    def inside(self, container: Any, key: Any) -> Slot:
        """A place in a container, which is looked for where it was found, as far as that is known."""
        home, of_object = self.homes.get(identity(container), (None, False))
        return Slot(container, key, self._path(container, key), parent=home, is_attribute=of_object)

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

    def shared(self, slots: Iterable[Slot]) -> list[tuple[Slot, Slot]]:
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
    _visit_all(state, replaced())
    for root in roots:
        if container_kind(root) is not None or isinstance(root, (*BUFFERS, *WRAPPED)):
            # An argument of a class derived from a container is no node of a tree: what is in it is a place like any.
            name = f"a {type(root).__name__}"
            _visit_name(state, Slot((root,), 0, name), root, 0)
        else:
            _visit(state, root, "", 0)
    # Which attributes of objects and classes matter is known when all code has been seen; they may lead to more code.
    seen = -1
    while seen != (seen := len(state.mentioned) + len(state.objects) + len(state.classes)):
        for thing, path, slot in list(state.objects):
            _visit_attributes(state, thing, path, slot)
        for kind in list(state.classes):
            _visit_class(state, kind)
        if state.modules:
            _visit_settings(state)
    for thing, path, _ in state.objects:
        own = attributes(thing)
        if not isinstance(thing, types.ModuleType):
            _visit_absent(state, own, (type(thing),), path or "an object")
    for kind in state.classes:
        _visit_absent(state, class_dictionary(kind), (kind, type(kind)), kind.__name__)
        _visit_line(state, kind)
    for space, names in state.unbound.values():
        name = f"a global name ({', '.join(sorted(names)[:3])})"
        place = (AbsentNames(space), frozenset(names), name, ())
        state.names.setdefault((identity(place[0]), place[1]), name_fact(place))
    _visit_tensor_attributes(state)
    if not OF_ENVIRONMENT.isdisjoint(state.mentioned):
        held = vars(ENVIRONMENT)
        known = (held, "_data", "the environment of the process", held["_data"])
        state.names.setdefault((id(held), "_data"), name_fact(known))
    return state


def _visit_line(state: PythonState, kind: type) -> None:
    for fact in class_facts(kind, asks_classes=not CLASS_QUESTIONS.isdisjoint(state.mentioned)):
        state.names.setdefault((identity(fact.container), fact.key), fact)


def _visit_attributes(state: PythonState, thing: Any, path: str, slot: Slot | None) -> None:
    """Visit what code mentions of an object's attributes; all of them where library code, or a computed name, may."""
    own, hops = attributes(thing), state.hops.get(id(thing), 0)
    foreign = not isinstance(thing, types.ModuleType) and is_foreign(type(thing))
    names = [name for name in own if type(name) is str and name in state.mentioned]
    _visit_some(state, (own, names, path, slot), hops)
    if isinstance(thing, OF_LOGGING):
        _visit_some(state, (own, OF_LOGGERS & own.keys(), path, slot), hops)
    elif hops < MOST_HOPS and (foreign or (state.asks_all and not isinstance(thing, types.ModuleType))):
        others = [name for name in own if type(name) is str and name not in state.mentioned]
        _visit_some(state, (own, others, path, slot), hops + foreign)


def _visit_some(state: PythonState, found: tuple[Any, Iterable[str], str, Slot | None], hops: int) -> None:
    """Visit attributes of an object, so many foreign ones away from what code mentions: there, no more code."""
    own, names, path, slot = found
    before, state.hops_now = state.hops_now, hops
    for name in names:
        if hops and (identity(own), name) not in state.names:
            state.unmentioned += 1
        if not hops or state.unmentioned <= MOST_UNMENTIONED:
            _visit_name(state, Slot(own, name, join(path, name), parent=slot, is_attribute=True), own[name], 1)
    state.hops_now = before


def _beside(fact: NameFact, touched: Touched) -> NameFact | None:
    """A fact on absent names without those that code itself puts there."""
    if not isinstance(fact.container, AbsentNames):
        return fact
    own = fact.container.thing
    keys = touched.keys(own)
    names = frozenset() if keys is None else fact.key - keys - touched.given(own)
    return name_fact((fact.container, names, fact.path, ())) if names else None


def _visit_absent(state: PythonState, own: MutableMapping[str, Any], kinds: tuple[type, ...], path: str) -> None:
    """Visit names that an object or class does not have itself, where code asks for that, or finds them in a class."""
    bases = [vars(base) for kind in kinds for base in kind.__mro__ if base not in (object, type)]
    known = set().union(*bases)
    asks = not ABSENCE_QUESTIONS.isdisjoint(state.mentioned)
    asked = (state.mentioned - IMPLICIT if asks else state.mentioned & known) | (IMPLICIT & known)
    names = frozenset(asked - (own.keys() if isinstance(own, dict) else set(own)))
    if names:
        absent = AbsentNames(own)
        state.names.setdefault((identity(absent), names), name_fact((absent, names, f"which names {path} has", ())))


def _visit_tensor_attributes(state: PythonState) -> None:
    """Visit the Python attributes of tensors; where code may ask for some that are not there, of all tensors."""
    asks = not ATTRIBUTE_QUESTIONS.isdisjoint(state.mentioned)
    for slot in list(state.slots.values()):
        own = getattr(slot.get(), "__dict__", None)
        if own or (asks and own is not None):
            place = ((own,), 0, f"attributes of {slot.path}", own)
            state.names.setdefault((id(own), 0), name_fact(place))


def _visit_all(state: PythonState, places: Iterable[Place]) -> None:
    for _, _, path, value in places:
        _visit(state, value, path, 1)


def _visit_settings(state: PythonState) -> None:
    """Visit what all modules read: hooks that run at every module's call, and how attention is computed."""
    for module, name in (*((HOOKED, name) for name in GLOBAL_HOOKS), (torch.backends.mha, "_is_fastpath_enabled")):
        own = vars(module)
        if name in own:
            place = (own, name, name.removeprefix("_").replace("_", " "), own[name])
            state.names.setdefault((id(own), name), name_fact(place))
            hooks = list(own[name].values()) if isinstance(own[name], dict) else ()
            _visit_all(state, ((own, name, name, hook) for hook in hooks))
    is_parametrized = any("parametrizations" in module._modules for module in state.modules)
    for name, value in kept_by_parametrize().items() if is_parametrized else ():
        _visit_name(state, Slot(vars(torch.nn.utils.parametrize), name, name.removeprefix("_")), value, 1)


def _add_class(state: PythonState, kind: type) -> None:
    """Add a class with those that it is derived from, and the class that it is of."""
    own = user_bases(kind)
    state.classes.update((base, None) for base in (*own, *user_bases(type(kind))))


def _visit_class(state: PythonState, kind: type) -> None:
    """Visit what code mentions of a class's attributes: values of any kind, and methods."""
    own = class_dictionary(kind)
    _add_containers(state, own)
    for name in sorted(state.mentioned & own.keys()):
        value, path = own[name], f"{kind.__name__}.{name}"
        if isinstance(value, torch.Tensor):
            _visit_tensor(state, Slot(own, name, path, owner=kind), value)
            continue
        state.names.setdefault((id(own), name), name_fact((own, name, path, value), of_class=True))
        if type(value) in SIMPLE or container_kind(value) or isinstance(value, (*SOURCES, *TAKEN)):
            _visit_container(state, Slot(own, name, path, owner=kind), value, 1)
        elif _visit_method(state, value, 1) is None:
            _visit(state, value, path, 1)
    for name in sorted(own.keys() & implicit_names(kind)):
        place = (own, name, f"{kind.__name__}.{name}", own[name])
        state.names.setdefault((id(own), name), name_fact(place, of_class=True))
        _visit_method(state, own[name], 1)


def _visit(state: PythonState, thing: Any, path: str, depth: int, slot: Slot | None = None) -> None:
    if depth > DEEPEST or id(thing) in state.visited or (state.hops_now and isinstance(thing, CODE)):
        return
    if isinstance(thing, nn.Module) and type(thing) not in ProxyTypes:
        _visit_module(state, thing, path, depth)
        return
    state.visited[id(thing)] = thing
    visit = next((visit for kinds, visit in VISITS if isinstance(thing, kinds)), _visit_object)
    visit(state, thing, path, depth, slot)


def _visit_bound(state: PythonState, thing: types.MethodType, path: str, depth: int, slot: Slot | None) -> None:
    if isinstance(thing.__self__, SOURCES) and slot is not None:
        state.bound.append((slot, thing))
        if thing.__self__ in OF_PROCESS:
            return
    _visit(state, thing.__self__, path, depth)
    _visit(state, thing.__func__, path, depth)


def _visit_partial(state: PythonState, thing: partial[Any], path: str, depth: int, _: Slot | None) -> None:
    made_of = OfPartial(thing)
    _visit(state, thing.func, path, depth + 1, Slot(made_of, "func", path))
    _visit_given(state, given(thing.args, thing.keywords), depth, Slot(made_of, "args", path))
    state.names[identity(made_of), "keywords"] = name_fact((made_of, "keywords", path, thing.keywords))  # may grow


def _visit_python_module(state: PythonState, thing: types.ModuleType, path: str, _: int, slot: Slot | None) -> None:
    _add_containers(state, vars(thing))
    if not is_library(thing):
        state.objects.append((thing, path, slot))
        asked = vars(thing).get("__getattr__")  # what gives names that are not there
        if asked is not None:
            _visit_name(state, Slot(vars(thing), "__getattr__", f"{path}.__getattr__"), asked, 1)


def _visit_reference(state: PythonState, thing: Any, path: str, depth: int, _: Slot | None) -> None:
    """Note a weak reference. What it is of is not followed: facts would keep that alive."""
    state.references.append((thing, path, state.attribute))
    found = thing() if isinstance(thing, ReferenceType) else None
    if isinstance(found, types.MethodType):
        _visit(state, found.__func__, path, depth)  # which its class holds


def _visit_generator(state: PythonState, thing: torch.Generator, _: str, __: int, ___: Slot | None) -> None:
    state.generators.append(thing)


def _visit_naming(state: PythonState, thing: Any, _: str, __: int, ___: Slot | None) -> None:
    state.mentioned.update(part for name in asked_names(thing) for part in name.split("."))


def _visit_builtin_method(state: PythonState, thing: Any, path: str, depth: int, slot: Slot | None) -> None:
    """Visit what a builtin method is of: `features.__setitem__`, `rows.append`, `rng.normal`, `numbers.__next__`."""
    owner = thing.__self__
    if owner is None or isinstance(owner, (type, types.ModuleType)):
        return
    if isinstance(owner, (*SOURCES, *TAKEN)) and slot is not None:
        state.bound.append((slot, thing))
    if isinstance(owner, SOURCES):
        state.sources += [] if owner in OF_PROCESS else [owner]
    elif not isinstance(owner, TAKEN):
        _visit_name(state, Slot((owner,), 0, f"{path}.__self__"), owner, depth)


def _visit_object(state: PythonState, thing: Any, path: str, depth: int, slot: Slot | None) -> None:
    """Visit a class, an instance of one, or what wraps a function."""
    wrapped = wrapped_in(thing)
    if isinstance(thing, SOURCES):
        state.sources.append(thing)
    elif isinstance(thing, ContextVar):
        _add_context(state, thing, path)
    elif wrapped is not None:
        if isinstance(thing, CACHED):
            _visit_cache(state, thing, depth)
        _visit(state, wrapped, path, depth + 1)
    elif isinstance(thing, type):
        _add_class(state, thing)
        if is_protocol(thing):  # which asks its instances for attributes
            state.mentioned.update(ATTRIBUTE_QUESTIONS, get_protocol_members(thing))
    elif isinstance(thing, WRAPPED):
        own = attributes(thing)
        _add_containers(state, own)
        name = "maps" if isinstance(thing, ChainMap) else "data"
        _visit_name(state, Slot(own, name, join(path, name), parent=slot, is_attribute=True), own[name], depth + 1)
    elif _is_plain_object(thing):
        state.objects.append((thing, path, slot))
        state.hops[id(thing)] = state.hops_now
        of_object = OfObject(thing)
        place = (of_object, "__class__", f"the class of {path or 'an object'}", type(thing))
        state.names.setdefault((identity(of_object), "__class__"), name_fact(place, of_class=True))
        own = attributes(thing)
        _add_containers(state, own)
        if slot is not None:
            state.homes.setdefault(identity(own), (slot, True))
        _add_class(state, type(thing))
        _visit_code(state, type(thing), "__call__", depth)


def _visit_cache(state: PythonState, cached: Any, depth: int) -> None:
    state.caches.append(cached)
    for slot, facts in remembered(cached):
        state.names.update(((identity(fact.container), fact.key), fact) for fact in facts)
        _visit_container(state, slot, slot.get(), depth)


def _visit_module(state: PythonState, root: nn.Module, path: str, depth: int) -> None:
    for name, module in root.named_modules(prefix=path):
        if module in state.modules:
            continue
        state.visited[id(module)] = module
        state.modules[module] = name
        _add_class(state, type(module))
        _add_containers(state, module.__dict__, *(module.__dict__[name] for name in REGISTRIES), *registries(module))
        for registry in REGISTRIES:
            for key, tensor in module.__dict__[registry].items():
                if tensor is not None:
                    _visit_tensor(state, Slot(module.__dict__[registry], key, join(name, key), registered=True), tensor)
        outer = state.attribute
        for key, value in list(module.__dict__.items()):
            if key not in APART or key == "forward":  # one of its own, in the place of its class's
                state.attribute = key
                _visit_container(state, Slot(module.__dict__, key, join(name, key)), value, depth)
        state.attribute = outer
        for hooks in HOOKS:
            for hook in list((module.__dict__.get(hooks) or {}).values()):
                _visit(state, hook, name, depth + 1)
        _visit_code(state, type(module), "forward", depth)
        _visit_forward(state, type(module))


def _visit_forward(state: PythonState, kind: type) -> None:
    """Visit where the forwards of a class of modules are: somebody may put others there."""
    for owner in (base for base in kind.__mro__ if "forward" in vars(base) and base is not nn.Module):
        own = class_dictionary(owner)
        place = (own, "forward", f"{owner.__name__}.forward", own["forward"])
        state.names.setdefault((id(own), "forward"), name_fact(place, of_class=True))


def _visit_code(state: PythonState, kind: type, entry: str, depth: int) -> None:
    """Visit a method that Weft runs, and the methods of the same class that it mentions."""
    waiting, seen = [entry], {entry}
    while waiting:
        method = _visit_method(state, in_class(kind, waiting.pop()), depth)
        if method is None:
            continue
        names = mentioned(method.__code__) - seen
        seen |= names
        waiting += sorted(names)


def _visit_method(state: PythonState, found: Any, depth: int) -> types.FunctionType | None:
    """Visit what a class's attribute runs, if it is a method of the user's."""
    inner = getattr(found, "__func__", found)
    if isinstance(inner, CACHED) and inner not in state.caches:
        _visit_cache(state, inner, depth)
    method = function_of(found)
    if method is None or is_library(method):
        return None
    _visit(state, method, "", depth + 1)
    return method


def _add_containers(state: PythonState, *containers: Any) -> None:
    state.containers.update((identity(container), container) for container in containers)


def _visit_tensor(state: PythonState, slot: Slot, tensor: torch.Tensor) -> None:
    if is_stand_in(tensor):
        state.stand_ins.append(slot)
    else:
        state.slots.setdefault(id(tensor), slot)
        state.places[id(tensor)].append(slot)


def _visit_container(state: PythonState, slot: Slot, value: Any, depth: int) -> None:
    """Visit what a place of any kind holds."""
    if type(value) in SIMPLE:
        return  # as most do
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
        is_read = kind is not None or (isinstance(value, np.ndarray) and value.dtype.hasobject)
        if is_read and depth <= DEEPEST and len(value) <= LONGEST_INSIDE:
            for item in list(value.flat if isinstance(value, np.ndarray) else value):
                if type(item) not in SIMPLE:
                    state.asks_identity = state.asks_identity or (kind in SETS and isinstance(item, torch.Tensor))
                    _visit_container(state, Slot((item,), 0, f"an item of {slot.path}"), item, depth + 1)
    elif (inner := behind(value)) is not None:
        _visit_name(state, Slot((inner,), 0, slot.path), inner, depth)
    elif isinstance(value, TAKEN) and type(value) not in ProxyTypes:  # these have `__next__` whatever they are of
        state.iterators.append(slot)
    elif isinstance(value, ContextVar):
        _add_context(state, value, slot.path)
    else:
        state.places[id(value)].append(slot)
        _visit(state, value, slot.path, depth, slot)


def _visit_items(state: PythonState, slot: Slot, value: Any, depth: int) -> None:
    kind = container_kind(value)
    is_outer = slot.parent is None or isinstance(slot.parent.container, (OfFunction, OfPartial))
    if is_outer or (depth <= DEEPEST and kind.__len__(value) <= LONGEST_INSIDE):
        for name, item in list(dict.items(value) if kind is dict else enumerate(kind.__iter__(value))):
            if type(item) not in SIMPLE:
                place = Slot(value, name, f"{slot.path}[{name!r}]", parent=slot)
                _visit_container(state, place, item, depth + 1)
            if kind is dict and type(name) not in SIMPLE:
                state.asks_identity = state.asks_identity or isinstance(name, torch.Tensor)
                _visit_container(state, Slot((name,), 0, f"a key of {slot.path}"), name, depth + 1)
    if isinstance(value, defaultdict):
        made_by = Slot(OfDefaults(value), "default_factory", join(slot.path, "default_factory"))
        _visit_name(state, made_by, value.default_factory, depth)
    if type(value) is not kind:
        _visit(state, value, slot.path, depth + 1, slot)  # a class of the user's may have attributes too


def _visit_function(state: PythonState, function: types.FunctionType, path: str, depth: int, slot: Slot | None) -> None:
    _add_containers(state, function.__dict__)
    if function.__dict__:
        state.objects.append((function, path, slot))
    state.mentioned.update(mentioned(function.__code__), ["registry"] if function.__code__ is DISPATCHER else [])
    names = frozenset(global_names(function.__code__))
    if names & (NAMES.keys() | CALLED.keys()):
        state.namespaces[id(function.__globals__)] = function.__globals__
    if names & CALLED.keys() and uncalled_names(function.__code__):
        state.naming[id(function.__globals__)] = state.naming.get(
            id(function.__globals__), frozenset()
        ) | uncalled_names(function.__code__)
    if binds_globals(function.__code__):
        _add_containers(state, function.__globals__)
    is_own = not is_installed(function.__module__)  # what is installed compares flags of its callers so
    state.asks_kinds = state.asks_kinds or (is_own and asks_kinds(function.__code__))
    state.asks_identity = state.asks_identity or compares_identity(function.__code__)
    state.asks_all = state.asks_all or asks_by_computed_names(function.__code__)
    space = function.__globals__
    absent = {name for name in names if name not in space or is_builtin_name(space[name])}
    if absent:
        state.unbound.setdefault(id(space), (space, set()))[1].update(absent)
    made_of = OfFunction(function)
    for key, part in made_of.items():
        place = (made_of, key, f"{function.__name__}.{key}", part)
        state.names.setdefault((identity(made_of), key), name_fact(place))
    _add_containers(state, made_of)
    for container, key, name, value in reached(function):
        _visit_name(state, Slot(container, key, name), value, depth)
        if isinstance(value, types.ModuleType) and is_library(value):
            for place in in_library(value, name, mentioned(function.__code__), {id(value)}):
                _visit_library_name(state, place, depth)
    held = Slot(made_of, "__defaults__", function.__name__)
    _visit_given(state, given(function.__defaults__ or (), function.__kwdefaults__ or {}), depth, held)


def _visit_given(state: PythonState, places: Iterable[Place], depth: int, held: Slot) -> None:
    """Visit what functions were given before they are called: always the same, but what it holds may change.

    The tuple of what is given by position is in the place `held`.
    """
    for container, key, path, value in places:
        slot = Slot(container, key, path, parent=None if isinstance(container, dict) else held)
        if can_change(value) or isinstance(container, dict):
            _visit_name(state, slot, value, depth)
        else:
            _visit_container(state, slot, value, depth)


def _visit_name(state: PythonState, slot: Slot, value: Any, depth: int) -> None:
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


def _visit_library_name(state: PythonState, place: Place, depth: int) -> None:
    """Visit what stands in a library, where somebody may put something else."""
    state.names.setdefault((identity(place[0]), place[1]), name_fact(place))
    if isinstance(place[3], types.FunctionType) and not is_library(place[3]):
        _visit(state, place[3], place[2], depth + 1)


def _is_usual_name(slot: Slot, value: Any) -> bool:
    """Whether a function or class of a library stands under its own name in a library, as an import leaves it."""
    space = slot.container.get("__name__") if isinstance(slot.container, dict) else None
    return slot.key == getattr(value, "__name__", "") and (not isinstance(space, str) or is_installed(space))


def _add_context(state: PythonState, variable: ContextVar[Any], path: str) -> None:
    container = OfContext(variable)
    _visit_name(state, Slot(container, "value", path), look(container, "value"), 1)


def _is_plain_object(thing: Any) -> bool:
    """Whether a thing is of a class of the user's, with attributes."""
    # Python itself keeps fields of dataclasses, which nobody changes once the class is there.
    if isinstance(thing, (type, types.ModuleType, Field)) or not has_attributes(thing):
        return False
    return type(thing).__module__.startswith(WITH_STATE) or not is_library(type(thing))


# By kind, the first that fits: how it is visited.
Visit = Callable[[PythonState, Any, str, int, "Slot | None"], None]
VISITS: tuple[tuple[Any, Visit], ...] = (
    ((ReferenceType, *ProxyTypes), _visit_reference),
    (types.MethodType, _visit_bound),
    (partial, _visit_partial),
    (types.FunctionType, _visit_function),
    (types.ModuleType, _visit_python_module),
    (BUILTIN_METHODS, _visit_builtin_method),
    (NAMING, _visit_naming),
    (torch.Generator, _visit_generator),
)
