"""Notice functions and numbers of libraries that somebody puts others in the place of: `functional.relu = mine`.

PyTorch's own modules call what stands in `torch`, in `torch.nn.functional`, in the class of tensors and among
builtins, so all of these is compared: as words the version of each dictionary. Of other libraries' modules it is what
code mentions.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn import functional

from weft.owners import Owner, owner_of
from weft.trace.python_state.containers import MISSING, Keys, class_dictionary
from weft.trace.python_state.facts import SIMPLE, changed, join
from weft.trace.python_state.names import Place, is_library

WHOLE: tuple[Any, ...] = (torch, functional, torch.Tensor, builtins)
OF_PROMPT = {"_"}  # where Python puts the value of the last line that was typed
_known: dict[int, dict[str, Any]] = {}  # what was there when it was looked at last, for all who look


@dataclass(frozen=True, slots=True, eq=False)
class LibraryFact:
    """What stood under the names of a module or class of PyTorch, or of builtins."""

    path: str
    own: dict[str, Any]
    held: dict[str, Any]
    moves: bool = False

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        if self.held is _held(self.own):
            return None
        for name in (self.held.keys() | self.own.keys()) - OF_PROMPT:
            before, now = self.held.get(name, MISSING), self.own.get(name, MISSING)
            if before is not now and _matters(before) | _matters(now) and not _is_same(before, now):
                return changed(join(self.path, name), before, now)
        return None

    def moved(self) -> Iterator[tuple[Any, Keys]]:
        """Places with other tensors: there are none."""
        return iter(())


def library_facts() -> list[LibraryFact]:
    """What stands in PyTorch now."""
    return [LibraryFact(path, own, _held(own)) for path, own in _dictionaries()]


def replaced() -> Iterator[Place]:
    """What users have put in PyTorch."""
    for path, own in _dictionaries():
        for name, value in _foreign(own).items():
            yield own, name, join(path, name), value


def kept_by_parametrize() -> dict[str, Any]:
    """What `parametrize.cached()` sets, and what it keeps."""
    own = vars(torch.nn.utils.parametrize)
    return {name: own[name] for name in ("_cache_enabled", "_cache")}


def in_library(module: ModuleType, path: str, names: frozenset[str], seen: set[int]) -> Iterator[Place]:
    """Functions, classes and numbers that code mentions of a library's module, and of modules in it."""
    own = vars(module)
    for name in sorted(names & own.keys()):
        value, inner = own[name], f"{path}.{name}"
        if isinstance(value, ModuleType) and is_library(value) and id(value) not in seen:
            seen.add(id(value))
            yield from in_library(value, inner, names, seen)
        elif module not in WHOLE and (_is_function(value) or isinstance(value, type) or type(value) in SIMPLE):
            yield own, name, inner, value


def _is_function(value: Any) -> bool:
    """Whether it is a function and no method of an object, such as those of `random`, whose draws are followed."""
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, (ModuleType, type))
    return isinstance(value, FunctionType)


@cache
def _dictionaries() -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple(
        (f"{thing.__module__}.{thing.__name__}", class_dictionary(thing))
        if isinstance(thing, type)
        else (thing.__name__, vars(thing))
        for thing in WHOLE
    )


def _held(own: dict[str, Any]) -> dict[str, Any]:
    """What a dictionary holds: the very copy that was made last, where nothing has changed since."""
    before = _known.get(id(own))
    if before is None or len(before) != len(own) or not all(map(is_, before.values(), own.values())):
        before = _known[id(own)] = dict(own)
    return before


_found: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}


def _foreign(own: dict[str, Any]) -> dict[str, Any]:
    """The functions in a dictionary of PyTorch that are no library's."""
    held = _held(own)
    before = _found.get(id(own))
    if before is None or before[0] is not held:
        functions = {name: _original(value) for name, value in held.items() if _matters(value)}
        foreign = {name: value for name, value in functions.items() if isinstance(value, FunctionType)}
        before = _found[id(own)] = held, {name: value for name, value in foreign.items() if not is_library(value)}
    return before[1]


def _is_same(before: Any, now: Any) -> bool:
    """Whether both are one function; notebooks make a new method of one object for each cell, in place of `input`."""
    before, now = _original(before), _original(now)
    return before is now or (isinstance(before, MethodType) and isinstance(now, MethodType) and before == now)


def _matters(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))


def _original(value: Any) -> Any:
    """What stands under a name, without what Weft wraps it in; what Weft alone has put there is nothing."""
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not isinstance(inner, FunctionType) or owner_of(inner.__code__.co_filename) is not Owner.WEFT:
        return value
    return _original(inner.__wrapped__) if hasattr(inner, "__wrapped__") else MISSING
