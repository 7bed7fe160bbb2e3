"""What others change between calls, in places that no name leads to directly, the next call sees."""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.ways import Work, assert_every_way

import weft

WAYS = ("hybridize", "library", "lazy")


class Key:
    """What a weak dictionary may have as a key."""


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
    "a long set": lambda: kept_in(set(range(300)), lambda x: 300 in x, lambda x: x.add(300)),
    "a long list inside": lambda: kept_in([[[0] * 300]], lambda x: x[0][0][9], lambda x: x[0][0].__setitem__(9, 1)),
    "a large array": lambda: kept_in(np.zeros(1 << 14), lambda x: x[9], lambda x: x.__setitem__(9, 1)),
    "large bytes": lambda: kept_in(bytearray(1 << 17), lambda x: x[9], lambda x: x.__setitem__(9, 1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_others_change_is_seen_by_the_next_call(name: str) -> None:
    assert not assert_every_way(CHANGES[name], *WAYS)


def test_what_is_put_in_weak_containers_is_seen_by_the_next_call() -> None:
    first, second = Key(), Key()
    scales, kept = weakref.WeakKeyDictionary[Any, Any]({first: 1.0}), weakref.WeakSet[Any]([first])
    function = weft.hybridize(lambda x: x * scales[first] + len(kept))
    assert function(torch.ones(1)) == 2
    scales[first] = 3.0
    assert function(torch.ones(1)) == 4
    kept.add(second)
    assert function(torch.ones(1)) == 5
