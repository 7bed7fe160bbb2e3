"""Objects without tensors that traced code makes are made anew at each run; those that were there before stay."""

from __future__ import annotations

import argparse
import array
import collections
import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn

import weft


class Statistics:
    """What somebody may count in."""

    def __init__(self, count: int = 0) -> None:
        self.count, self.items = count, [1]


class Slotted:
    """The same without a dictionary."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Circle:
    """It holds itself."""

    def __init__(self) -> None:
        self.me, self.parts = self, [Statistics()]


@dataclasses.dataclass
class Entry:
    """A dataclass."""

    count: int = 0
    items: list[int] = dataclasses.field(default_factory=list)


class Numbers(list):  # type: ignore[type-arg]
    """A list of the user's own class."""


OLD = Statistics(5)
MANY = {number: Statistics(number) for number in range(1000)}
NUMBERS = np.arange(3)
CHOICES = {1, 2}


def shared() -> Any:
    one = Statistics()
    return one, {"again": one}


NEW: dict[str, Callable[[], Any]] = {
    "object": Statistics,
    "slots": Slotted,
    "circle": Circle,
    "dataclass": Entry,
    "list": lambda: Numbers([1, Statistics()]),
    "set": lambda: {1, 2},
    "counter": lambda: collections.Counter("aab"),
    "wrapped": lambda: collections.UserDict(a=1),
    "chain": lambda: collections.ChainMap({"a": 1}),
    "namespace": lambda: types.SimpleNamespace(a=1, b=[2]),
    "options": lambda: argparse.Namespace(a=1),
    "bytes": lambda: bytearray(b"ab"),
    "array": lambda: array.array("i", [1, 2]),
    "numpy": lambda: np.zeros(3),
    "nested": lambda: {"a": [Statistics(), {"b": Statistics()}]},
    "shared": shared,
    "copy": lambda: copy.deepcopy(OLD),
}
THERE: dict[str, Callable[[], Any]] = {
    "global": lambda: OLD,
    "one of many": lambda: MANY[700],
    "twice": lambda: (MANY[999], MANY[999]),
    "numpy": lambda: NUMBERS,
    "set": lambda: CHOICES,
    "inside a new one": lambda: types.SimpleNamespace(old=OLD),
}


def changed(thing: Any) -> None:
    """Change a thing as its owner may."""
    if isinstance(thing, (Statistics, Slotted, Entry)):
        thing.count += 1
    elif isinstance(thing, set):
        thing.add(77)
    elif isinstance(thing, np.ndarray):
        thing[:] = 5
    elif isinstance(thing, list):
        thing.append(1)
    elif isinstance(thing, (dict, collections.UserDict, collections.ChainMap)):
        thing["more"] = 1


@pytest.mark.parametrize("name", [*NEW, *(f"old {name}" for name in THERE)])
def test_what_is_given_back_is_a_new_object_where_eager_makes_one(name: str) -> None:
    thing = THERE[name.removeprefix("old ")] if name.startswith("old ") else NEW[name]
    refused = ["hybridize"] if name == "circle" else []

    def make() -> Work:
        net = nn.Linear(4, 4)
        return Work.repeated(lambda x: (net(x), thing()), torch.randn(2, 4))

    assert_every_way(make, "hybridize", refused=refused)


@pytest.mark.parametrize("name", sorted(NEW.keys() - {"circle"}))
def test_what_is_kept_is_a_new_object_at_each_run(name: str) -> None:
    def make() -> Work:
        net = nn.Linear(4, 4)

        def function(x: torch.Tensor) -> torch.Tensor:
            net.kept = NEW[name]()
            return net(x)

        def before(_: int) -> None:
            changed(getattr(net, "kept", None))

        return Work(function, [((torch.randn(2, 4),), {})] * 3, watched=net, before=before)

    assert_every_way(make, "hybridize")


def test_attributes_of_a_tensor_that_is_kept_are_refused() -> None:
    def make() -> Work:
        kept: list[torch.Tensor] = []

        def function(x: torch.Tensor) -> torch.Tensor:
            h = x * 2
            h.tag = "a"  # type: ignore[attr-defined]
            kept.append(h)
            return h + 1

        return Work(function, [((torch.randn(2, 4),), {})], watched=kept)

    refusals = assert_every_way(make, "hybridize", refused=["hybridize"])
    assert "tag" in str(refusals["hybridize"])


class Giving:
    """An object that gives a function for every name."""

    def __getattr__(self, name: str) -> Callable[[], str]:
        if name.startswith("__") and name not in ("__closure__", "__defaults__", "__kwdefaults__"):
            raise AttributeError(name)
        return lambda: name


def test_objects_that_give_something_for_every_name_may_be_left_behind() -> None:
    given, last = Giving(), list[Any]()

    def function(x: torch.Tensor) -> torch.Tensor:
        last[:] = [{"of": given, "made": x * 2}]
        return x * 3

    hybrid = weft.hybridize(function, whole=True)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(hybrid(torch.full((2,), value)), torch.full((2,), 3 * value))
        assert last[0]["of"] is given
        assert torch.equal(last[0]["made"], torch.full((2,), 2 * value))
