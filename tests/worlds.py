"""Two graphs of Python objects -> the first place where they differ: in content, in identity, or in a tensor's bits.

Both sides did the same work on objects of their own. What is one object on one side must be one object on the other,
so pairs are kept from walk to walk: also what was popped from an argument is looked at again.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import math
import operator
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from tests.conformance.compare import form_difference, same_bits, same_rounding, value_difference
from torch import nn
from torch.utils.hooks import RemovableHandle

import weft
from weft.api.hybrid import Hybrid
from weft.lazy_tensors.tensor import LazyTensor, LazyValue

PLAIN = (bool, int, str, bytes, complex, type(None), type(Ellipsis), range, slice, torch.dtype, torch.device)
SEQUENCES = (list, tuple, collections.deque)
NO_IDENTITY = (tuple, frozenset, types.FunctionType, types.MethodType, types.CellType)
HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
SKIPPED = ("__builtins__", "__loader__", "__spec__", "__annotations__", "__weakref__", "__dict__", "__doc__")
Found = Iterator[tuple[str, Any, Any]]  # a place, what is there on eager's side, and on the other


class Worlds:
    """Pairs of objects that stand for each other, one eager's, one of another way to run."""

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        self._others: dict[int, Any] = {}  # of eager's objects, by id
        self._eagers: dict[int, Any] = {}
        self._storages: dict[int, int] = {}
        self._storages_back: dict[int, int] = {}
        self._alive: list[tuple[str, Any, Any]] = []

    def difference(self, place: str, expected: Any, actual: Any) -> str | None:
        """Walk two new things and all that was walked before; the first difference, None if there is none."""
        waiting = collections.deque([(place, expected, actual), *self._alive])
        self._storages.clear()
        self._storages_back.clear()
        walked: set[int] = set()
        while waiting:
            place, expected, actual = waiting.popleft()
            if expected is actual and not isinstance(expected, torch.Tensor):
                continue
            text = self._paired(expected, actual)
            if text is None and id(expected) in walked:
                continue
            walked.add(id(expected))
            text = text or self._shallow(expected, actual)
            if text is not None:
                return f"{place} {text}"
            inside = _inside(expected, actual)
            if isinstance(inside, str):
                return f"{place} {inside}"
            waiting.extend((f"{place}{step}", one, other) for step, one, other in inside)
            self._keep(place, expected, actual)
        return None

    def _keep(self, place: str, expected: Any, actual: Any) -> None:
        if not isinstance(expected, (*PLAIN, float)) and id(expected) not in self._others:
            self._others[id(expected)], self._eagers[id(actual)] = actual, expected
            self._alive.append((place, expected, actual))

    def _paired(self, expected: Any, actual: Any) -> str | None:
        """Say that one side has here an object that it had elsewhere, and the other side another one."""
        if isinstance(expected, (*PLAIN, float, *NO_IDENTITY)) or type(expected) is type:
            return None
        other, eager = self._others.get(id(expected)), self._eagers.get(id(actual))
        if other is not None and other is not actual:
            return f"is another object than before, eager's the same ({_short(actual)})"
        if eager is not None and eager is not expected:
            return f"is an object that is elsewhere too, eager's is not ({_short(actual)})"
        return None

    def _shallow(self, expected: Any, actual: Any) -> str | None:
        if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
            return self._tensors(expected, actual)
        if _name(type(expected)) != _name(type(actual)):
            return f"is of type {_name(type(actual))}, eager's of {_name(type(expected))}"
        if isinstance(expected, float):
            same = expected == actual and math.copysign(1, expected) == math.copysign(1, actual)
            same = same or (math.isnan(expected) and math.isnan(actual))
            same = same or (not self.exact and math.isclose(expected, actual, rel_tol=1e-4, abs_tol=1e-6))
            return None if same else f"is {actual!r}, eager's {expected!r}"
        for kind, state in STATES.items():
            if isinstance(expected, kind):
                one, other = state(expected), state(actual)
                return None if _equal(one, other) else f"is {_short(other)}, eager's {_short(one)}"
        return None

    def _tensors(self, expected: torch.Tensor, actual: torch.Tensor) -> str | None:
        if isinstance(actual, LazyTensor):
            actual = weft.wait(actual)
        if isinstance(expected, LazyTensor):
            expected = weft.wait(expected)
        text = form_difference(expected, actual)
        if text is not None:
            return text
        if (expected.grad_fn is None) != (actual.grad_fn is None):
            return f"has {'no ' if actual.grad_fn is None else ''}grad_fn, eager's the other"
        if expected.is_inference() != actual.is_inference():
            return f"is_inference() is {actual.is_inference()}, eager's {expected.is_inference()}"
        if not same_bits(expected, actual) and (self.exact or not same_rounding(expected, actual, torch.float32, 1.0)):
            return value_difference(expected, actual)
        return self._memory(expected, actual)

    def _memory(self, expected: torch.Tensor, actual: torch.Tensor) -> str | None:
        """Say that two tensors share memory on one side only."""
        if expected.layout is not torch.strided or actual.layout is not torch.strided:
            return None
        one, other = (int(tensor.untyped_storage()._cdata) for tensor in (expected, actual))
        if self._storages.setdefault(one, other) != other:
            return "does not share the memory that eager's shares"
        if self._storages_back.setdefault(other, one) != one:
            return "shares memory that eager's does not share"
        offsets = expected.storage_offset(), actual.storage_offset()
        return None if offsets[0] == offsets[1] else f"has storage_offset {offsets[1]}, eager's {offsets[0]}"


def _inside(expected: Any, actual: Any) -> Found | list[tuple[str, Any, Any]] | str:
    """List what a thing holds, side by side, or say that the two sides hold another number of things or other keys."""
    if isinstance(expected, torch.Tensor):
        graded = expected.is_leaf and actual.is_leaf
        one, other = _own_attributes(expected), _own_attributes(actual)
        if [*one] != [*other]:
            return f"has attributes {[*other]}, eager's {[*one]}"
        grads = [(".grad", expected.grad, actual.grad)] if graded else []
        return grads + [(f".{name}", one[name], other[name]) for name in one]
    if isinstance(expected, (*PLAIN, float, *STATES)):
        return []
    found: list[tuple[str, Any, Any]] = []
    if isinstance(expected, SEQUENCES):
        if len(expected) != len(actual):
            return f"has {len(actual)} items, eager's {len(expected)}"
        found += [(f"[{index}]", *pair) for index, pair in enumerate(zip(expected, actual, strict=True))]
    elif isinstance(expected, dict | types.MappingProxyType):
        if [*map(_short, expected)] != [*map(_short, actual)]:
            return f"has keys {_short([*actual])}, eager's {_short([*expected])}"
        values = zip(expected, expected.values(), actual.values(), strict=True)
        found += [(f"[{_short(key)}]", one, other) for key, one, other in values]
    elif isinstance(expected, set | frozenset) and sorted(map(_short, expected)) != sorted(map(_short, actual)):
        return f"is {_short(actual)}, eager's {_short(expected)}"
    one, other = _attributes(expected), _attributes(actual)
    if [*one] != [*other]:
        return f"has attributes {[*other]}, eager's {[*one]}"
    return found + [(f".{name}", one[name], other[name]) for name in one]


def _own_attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """What Python has put on a tensor."""
    return {name: value for name, value in vars(tensor).items() if type(value) is not LazyValue}


def _attributes(thing: Any) -> dict[str, Any]:
    """What an object keeps beside items: attributes, slots, closure, defaults."""
    for kind, held in HELD.items():
        if isinstance(thing, kind):
            return held(thing)
    found = {**getattr(thing, "__dict__", {})}
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in SKIPPED and hasattr(thing, name):
                found[name] = getattr(thing, name)
    if isinstance(thing, nn.Module):
        for name in HOOK_TABLES:
            if name in found:
                found[name] = [*found[name].values()]  # their keys are counted in the whole process
        if isinstance(found.get("forward"), Hybrid):
            del found["forward"]
    return found


def _of_function(thing: types.FunctionType) -> dict[str, Any]:
    cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
    held = {name: _content(cell) for name, cell in cells}
    return {**held, "__defaults__": thing.__defaults__, "__kwdefaults__": thing.__kwdefaults__, **thing.__dict__}


def _of_generator(thing: types.GeneratorType) -> dict[str, Any]:
    frame = thing.gi_frame
    return {} if frame is None else {"locals": {**frame.f_locals}, "line": frame.f_lineno}


def _of_namespace(thing: Any) -> dict[str, Any]:
    """What a module or class of the test's own holds."""
    return {} if _is_library(thing) else _without(vars(thing))


HELD: dict[Any, Callable[[Any], dict[str, Any]]] = {
    types.FunctionType: _of_function,
    functools._lru_cache_wrapper: lambda _: {},
    RemovableHandle: lambda _: {},
    types.MethodType: lambda method: {"__self__": method.__self__, "__func__": method.__func__},
    functools.partial: lambda made: {"func": made.func, "args": made.args, "keywords": made.keywords},
    types.GeneratorType: _of_generator,
    types.ModuleType: _of_namespace,
    type: _of_namespace,
    property | staticmethod | classmethod | types.BuiltinFunctionType: lambda _: {},
}
"""How things of some kinds keep what they keep, where it is not in attributes."""


def _without(names: Any) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not (name.startswith("__") and name.endswith("__"))}


def _is_library(thing: Any) -> bool:
    """Whether a module or class is not the test's own."""
    name = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
    return name.partition(".")[0] in ("torch", "builtins", "numpy", "weft", "collections", "typing", "functools")


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _name(kind: type) -> str:
    return "Tensor" if kind is LazyTensor else kind.__qualname__


def _short(thing: Any) -> str:
    if isinstance(thing, torch.Tensor):
        return f"tensor of {tuple(thing.shape)}"
    if type(thing).__repr__ is object.__repr__ or isinstance(thing, types.FunctionType | type | nn.Module):
        return _name(thing) if isinstance(thing, type) else f"a {_name(type(thing))}"
    return f"{thing!r:.200}"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return [*one] == [*other] and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other)


def _left(iterator: Any) -> int:
    return operator.length_hint(iterator, -1)


STATES: dict[Any, Callable[[Any], Any]] = {
    torch.Generator: torch.Generator.get_state,
    np.random.Generator: lambda generator: generator.bit_generator.state,
    np.random.RandomState: lambda generator: str(generator.get_state(legacy=False)),
    random.Random: random.Random.getstate,
    np.ndarray: lambda array: array,
    np.generic: lambda number: number,
    itertools.count: repr,
    contextvars.ContextVar: lambda variable: variable.get(None),
    type(iter([])): _left,
    type(iter(())): _left,
    type(iter(range(0))): _left,
    type(iter({})): _left,
    itertools.cycle: lambda _: None,
    **dict.fromkeys(PLAIN, lambda value: value),
}
"""What some kinds of things are compared by."""
