"""What others change between calls, in places that no name leads to directly, the next call sees."""

from __future__ import annotations

import builtins
import collections
import ctypes
import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn

import weft

WAYS = ("hybridize", "library", "lazy")


class Key:
    """What a weak dictionary may have as a key."""

    def number(self) -> float:
        """A method."""
        return 3.0


def inner(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * scale


def kept_in(thing: Any, read: Callable[[Any], Any], change: Callable[[Any], Any]) -> Work:
    """A function that reads a number of a thing, which changes before the third of four calls."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * float(read(thing))

    return changed(function, lambda: change(thing))


def changed(function: Callable[..., Any], change: Callable[[], Any]) -> Work:
    return Work(function, [((torch.ones(2),), {})] * 4, before=lambda number: change() if number == 2 else None)


def proxy() -> Work:
    behind = {"a": 1.0}
    shown = types.MappingProxyType(behind)
    return changed(lambda x: x * shown["a"], lambda: behind.update(a=2.0))


def copy_of_inner() -> Any:
    return types.FunctionType(inner.__code__, globals(), "inner", inner.__defaults__)


def defaults() -> Work:
    function = copy_of_inner()
    return changed(lambda x: function(x) + 0, lambda: setattr(function, "__defaults__", (2.0,)))


def own_defaults() -> Work:
    function = copy_of_inner()
    return changed(function, lambda: setattr(function, "__defaults__", (2.0,)))


def code() -> Work:
    function = copy_of_inner()
    return changed(
        lambda x: function(x) + 0, lambda: setattr(function, "__code__", (lambda x, scale: x - scale).__code__)
    )


def keyword_defaults(change: Callable[[Any], Any]) -> Work:
    def function(x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x * scale

    return changed(lambda x: function(x) + 0, lambda: change(function))


def partial_keywords() -> Work:
    function = functools.partial(inner, scale=1.0)
    return changed(lambda x: function(x) + 0, lambda: function.keywords.update(scale=2.0))


def library_function() -> Work:
    holder = {"act": torch.relu}
    function = eval("lambda x: act(x)", holder)
    return changed(function, lambda: holder.update(act=torch.exp))


def missing_items() -> Work:
    found = collections.defaultdict[str, float](lambda: 2.0)
    return changed(lambda x: x * (found["a"], found.clear())[0], lambda: setattr(found, "default_factory", lambda: 3.0))


def attribute_of_a_class_of_classes() -> Work:
    class Kinds(type):
        scale = 2.0

        def __getitem__(cls, number: int) -> float:
            return cls.scale * number

    class Kind(metaclass=Kinds):
        pass

    return changed(lambda x: x * Kind[3], lambda: setattr(Kind, "scale", 5.0))


CHANGES: dict[str, Callable[[], Work]] = {
    "a mapping proxy": proxy,
    "a user's dictionary": lambda: kept_in(collections.UserDict(a=1), lambda x: x["a"], lambda x: x.update(a=2)),
    "defaults": defaults,
    "own defaults": own_defaults,
    "code": code,
    "keyword defaults": lambda: keyword_defaults(lambda f: setattr(f, "__kwdefaults__", {"scale": 2.0})),
    "a keyword default": lambda: keyword_defaults(lambda f: f.__kwdefaults__.update(scale=2.0)),
    "a partial function's keyword": partial_keywords,
    "a library's function under a name of the user's": library_function,
    "a long list": lambda: kept_in([0] * 300, lambda x: x[150], lambda x: x.__setitem__(150, 1)),
    "a long dictionary": lambda: kept_in(dict.fromkeys(range(300), 0), lambda x: x[150], lambda x: x.update({150: 1})),
    "what makes missing items": missing_items,
    "a class's attribute behind its own class's": attribute_of_a_class_of_classes,
    "numbers of C": lambda: kept_in((ctypes.c_float * 2)(1, 2), lambda x: x[1], lambda x: x.__setitem__(1, 5)),
    "a long set": lambda: kept_in(set(range(300)), lambda x: 300 in x, lambda x: x.add(300)),
    "a long list inside": lambda: kept_in([[[0] * 300]], lambda x: x[0][0][9], lambda x: x[0][0].__setitem__(9, 1)),
    "a large array": lambda: kept_in(np.zeros(1 << 14), lambda x: x[9], lambda x: x.__setitem__(9, 1)),
    "large bytes": lambda: kept_in(bytearray(1 << 17), lambda x: x[9], lambda x: x.__setitem__(9, 1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_others_change_is_seen_by_the_next_call(name: str) -> None:
    assert not assert_every_way(CHANGES[name], *WAYS)


def of_reference(first: Key) -> Any:
    reference = weakref.ref(first)
    return lambda x: x + (reference() is None)


def of_proxy(first: Key) -> Any:
    proxy = weakref.proxy(first)

    def told(x: torch.Tensor) -> torch.Tensor:
        try:
            return x + len(str(proxy)[:1])
        except ReferenceError:
            return x * 9

    return told


def of_method(first: Key) -> Any:
    method = weakref.WeakMethod(first.number)
    return lambda x: x + (7 if method() is None else method()())


def of_values(first: Key) -> Any:
    values = weakref.WeakValueDictionary[Any, Any]({"first": first})
    return lambda x: x + len(values)


def of_keys(first: Key) -> Any:
    values = weakref.WeakKeyDictionary[Any, Any]({first: 3.0})
    return lambda x: x + sum(values.values())


def of_set(first: Key) -> Any:
    values = weakref.WeakSet[Any]([first])
    return lambda x: x + len(values)


@pytest.mark.parametrize("make", [of_reference, of_proxy, of_method, of_values, of_keys, of_set])
def test_what_is_only_referred_to_weakly_may_die(make: Callable[[Key], Any]) -> None:
    kept = [Key()]
    plain = make(kept[0])
    function = weft.hybridize(plain, whole=False)
    for number in range(6):
        assert torch.equal(function(torch.ones(1)), plain(torch.ones(1)))
        if number == 2:
            kept.clear()
    assert "weak" in str(weft.explain(function))


class Child(nn.Module):
    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self.owner = weakref.ref(owner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child, self.scale = Child(self), 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x) * self.child.owner().scale  # type: ignore[operator]


def test_weak_references_that_matter_to_nobody_or_are_held_anyhow_need_no_python() -> None:
    owner = Owner()
    for net, last in ((owner.child, 2.0), (owner, 6.0)):
        hybrid = weft.hybridize(net)
        hybrid(torch.ones(1))
        owner.scale = 3.0
        assert hybrid(torch.ones(1)) == last
        assert "weak" not in str(weft.explain(hybrid))
        weft.hybridize(net, False)


def test_what_is_put_in_weak_containers_is_seen_by_the_next_call() -> None:
    first, second = Key(), Key()
    scales, kept = weakref.WeakKeyDictionary[Any, Any]({first: 1.0}), weakref.WeakSet[Any]([first])
    function = weft.hybridize(lambda x: x * scales[first] + len(kept) + (second is None))
    assert function(torch.ones(1)) == 2
    scales[first] = 3.0
    assert function(torch.ones(1)) == 4
    kept.add(second)
    assert function(torch.ones(1)) == 5


def test_a_builtin_that_is_replaced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    function = weft.hybridize(lambda x: x * round(1.2))
    assert function(torch.ones(1)) == 1
    monkeypatch.setattr(builtins, "round", lambda _: 7)
    assert function(torch.ones(1)) == 7
    monkeypatch.undo()
    assert function(torch.ones(1)) == 1


class Notebook:
    def read(self, prompt: str = "") -> str:
        """Stand for `input`."""
        return prompt


def test_what_a_prompt_and_a_notebook_put_among_builtins_is_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, net, x = Notebook(), nn.Linear(2, 2), torch.ones(1, 2)
    weft.hybridize(net)
    for typed in (net, x, len, 3, Notebook, net):  # what the last line gave; notebooks make a method for each cell
        monkeypatch.setattr(builtins, "_", typed, raising=False)
        monkeypatch.setattr(builtins, "input", notebook.read)
        net(x)
    assert net.forward.traces == 1
    monkeypatch.setattr(builtins, "input", Notebook().read)
    net(x)
    assert net.forward.traces == 2


def test_what_is_registered_for_a_class_later_is_seen() -> None:
    @functools.singledispatch
    def scale(_: object) -> float:
        return 2.0

    function = weft.hybridize(lambda x: x * scale(1.5))
    assert function(torch.ones(1)) == 2
    scale.register(float)(lambda _: 7.0)
    assert function(torch.ones(1)) == 7


class Slotted:
    __slots__ = ("scale",)


@pytest.mark.parametrize("make", [Slotted, threading.local])
def test_an_attribute_that_comes_to_a_place_without_a_dictionary_is_seen(make: Callable[[], Any]) -> None:
    thing = make()
    function = weft.hybridize(lambda x: x * getattr(thing, "scale", 5.0))
    assert function(torch.ones(1)) == 5
    thing.scale = 2.0
    assert function(torch.ones(1)) == 2
    del thing.scale
    assert function(torch.ones(1)) == 5
    thing.scale = 3.0
    assert function(torch.ones(1)) == 3
