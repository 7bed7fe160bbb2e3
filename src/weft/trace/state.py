"""A module or function -> where the tensors that it reaches live, and the Python facts that a program of it relies on.

A program reads a parameter where the module keeps it, at every call: replacing it is seen. What Python code may have
looked at while it was traced (training flags, plain attributes, submodules, hooks) is remembered and compared.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
APART = frozenset({"_parameters", "_buffers", "_modules", "forward", *HOOKS})
DEEPEST = 4


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A place that holds a tensor: an entry of a dictionary or list, or a closure's cell."""

    container: Any
    key: Any
    path: str
    registered: bool = False

    def get(self) -> torch.Tensor:
        """The tensor that is there now."""
        found: torch.Tensor = self.container.cell_contents if self.key is None else self.container[self.key]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ModuleFacts:
    """What a module looked like: its plain attributes, submodules, hooks, and which parameters it has."""

    module: nn.Module
    path: str
    facts: dict[str, Any]

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        now = _facts(self.module)
        if _same(now, self.facts):
            return None
        names = [name for name in {**self.facts, **now} if not _same(now.get(name), self.facts.get(name))]
        return "; ".join(_sentence(self.path, name, self.facts.get(name), now.get(name)) for name in names[:3]) or None


@dataclass(frozen=True, slots=True, eq=False)
class ScalarFact:
    """A global or closed-over number, text or flag, as it was."""

    container: Any
    key: Any
    path: str
    value: Any

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        now = self.container.cell_contents if self.key is None else self.container.get(self.key)
        return None if _same(now, self.value) else f"{self.path} was {self.value!r}, is {now!r}"


@dataclass(slots=True, eq=False)
class State:
    """Everything found from one module or function."""

    slots: dict[int, Slot] = field(default_factory=dict)
    modules: dict[nn.Module, str] = field(default_factory=dict)
    scalars: list[ScalarFact] = field(default_factory=list)
    visited: set[int] = field(default_factory=set)

    def facts(self) -> list[ModuleFacts]:
        """The facts of all modules as they are now."""
        return [ModuleFacts(module, path, _facts(module)) for module, path in self.modules.items()]

    def slot(self, tensor: torch.Tensor) -> Slot:
        """Where a tensor lives; one that was reached in a way that this walk does not know is held by itself."""
        return self.slots.get(id(tensor)) or Slot([tensor], 0, "a captured tensor")

    def may_write(self, tensor: torch.Tensor) -> bool:
        """Whether a program may write into this tensor: a parameter or buffer of a module."""
        slot = self.slots.get(id(tensor))
        return slot is not None and slot.registered


def find_state(*roots: Any) -> State:
    """Walk what modules and functions can reach by attribute, closure and global name."""
    state = State()
    for root in roots:
        _visit(state, root, "", 0)
    return state


def _visit(state: State, thing: Any, path: str, depth: int) -> None:
    if depth > DEEPEST or id(thing) in state.visited:
        return
    if isinstance(thing, nn.Module):
        _visit_module(state, thing, path)
    elif isinstance(thing, types.MethodType):
        _visit(state, thing.__self__, path, depth)
        _visit(state, thing.__func__, path, depth)
    elif isinstance(thing, partial):
        for part in (thing.func, *thing.args, *thing.keywords.values()):
            _visit(state, part, path, depth + 1)
    elif isinstance(thing, types.FunctionType):
        state.visited.add(id(thing))
        _visit_function(state, thing, depth)


def _visit_module(state: State, root: nn.Module, path: str) -> None:
    for name, module in root.named_modules(prefix=path):
        if module in state.modules:
            continue
        state.visited.add(id(module))
        state.modules[module] = name
        for registry in (module._parameters, module._buffers):
            for key, tensor in registry.items():
                if tensor is not None:
                    state.slots.setdefault(id(tensor), Slot(registry, key, _join(name, key), registered=True))
        for key, value in module.__dict__.items():
            if key not in APART:
                _visit_container(state, module.__dict__, key, _join(name, key), value)


def _visit_container(state: State, container: Any, key: Any, path: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        state.slots.setdefault(id(value), Slot(container, key, path))
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                state.slots.setdefault(id(item), Slot(value, index, f"{path}[{index}]"))
    elif type(value) is dict:
        for name, item in value.items():
            if isinstance(item, torch.Tensor):
                state.slots.setdefault(id(item), Slot(value, name, f"{path}[{name!r}]"))


def _visit_function(state: State, function: types.FunctionType, depth: int) -> None:
    for container, key, path, value in _reached(function):
        if isinstance(value, SIMPLE):
            state.scalars.append(ScalarFact(container, key, path, value))
        elif isinstance(value, torch.Tensor):
            state.slots.setdefault(id(value), Slot(container, key, path))
        elif isinstance(value, types.FunctionType) and _is_library(value):
            continue
        else:
            _visit_container(state, container, key, path, value)
            _visit(state, value, path, depth + 1)


def _reached(function: types.FunctionType) -> Iterator[tuple[Any, Any, str, Any]]:
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        yield function.__globals__, name, name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield cell, None, name, cell.cell_contents
        except ValueError:
            continue  # a name of the enclosing function that is not bound yet


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_library(function: Callable[..., Any]) -> bool:
    return (function.__module__ or "").partition(".")[0] in ("torch", "weft", "numpy", "math", "functools")


def _facts(module: nn.Module) -> dict[str, Any]:
    facts = {key: value for key, value in module.__dict__.items() if key not in APART}
    facts["submodules"] = dict(module._modules)
    facts["parameters"] = {key: value is not None for key, value in _tensors(module)}
    for name in HOOKS:
        hooks: MutableMapping[int, Any] = module.__dict__.get(name) or {}
        if hooks:
            facts[name.strip("_")] = dict(hooks)
    return facts


def _tensors(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from module._parameters.items()
    yield from module._buffers.items()


def _same(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except (RuntimeError, ValueError, TypeError):
        return False  # a tensor or array was replaced: comparing it gives no single truth


def _sentence(path: str, name: str, before: Any, now: Any) -> str:
    return f"{_join(path, name)} was {_brief(before)}, is {_brief(now)}"


def _brief(value: Any) -> str:
    text = repr(value) if isinstance(value, SIMPLE) else f"<{type(value).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
