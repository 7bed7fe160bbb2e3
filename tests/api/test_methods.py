"""Hybridized methods: each object has programs of its own, which end with it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import weft

X = torch.arange(4.0)


class Scaled:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    @weft.hybridize
    def of(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rate

    @weft.hybridize
    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self.of(self.of(x))


class Alike(Scaled):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 1


@dataclass
class Unhashed:
    rate: float

    @weft.hybridize
    def of(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rate


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: float) -> None:
        self.rate = rate

    @weft.hybridize
    def of(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rate


class Net(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.layer.weight)
        self.rate = rate

    @weft.hybridize
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.rate

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).detach()


kinds = pytest.mark.parametrize("kind", [Scaled, Alike, Unhashed, Slotted, Net])


@kinds
def test_objects_that_are_equal_have_programs_of_their_own(kind: Any) -> None:
    first, second = kind(2.0), kind(3.0)
    for _ in range(3):
        assert torch.equal(first.of(X), X * 2)
        assert torch.equal(second.of(X), X * 3)
    first.rate = 5.0
    assert torch.equal(first.of(X), X * 5)
    assert torch.equal(second.of(X), X * 3)


@pytest.mark.parametrize("kind", [Scaled, Unhashed, Net])
def test_an_object_ends_with_its_programs(kind: Any) -> None:
    found = []
    for number in range(3):
        made = kind(float(number))
        made.of(X)
        made.of(X)
        found.append(weakref.ref(made))
        del made
    gc.collect()
    assert [one() for one in found] == [None] * 3


@kinds
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))], ids=["copy", "deep", "pickle"]
)
def test_a_copy_runs_programs_of_its_own(kind: Any, copied: Any) -> None:
    made = kind(2.0)
    assert torch.equal(made.of(X), X * 2)
    other = copied(made)
    other.rate = 3.0
    assert torch.equal(other.of(X), X * 3)
    assert torch.equal(made.of(X), X * 2)


def test_an_object_with_hybridized_methods_is_an_argument_like_any() -> None:
    function = weft.hybridize(lambda scaled, x: scaled.twice(x) + 1)
    for number in (1.0, 2.0, 3.0):
        given = Scaled(number)
        assert torch.equal(function(given, X), X * number**2 + 1)
        assert "__weft__" not in vars(given)
        given.of(X)
        assert torch.equal(function(given, X), X * number**2 + 1)


def test_hybridized_methods_call_each_other() -> None:
    scaled = Scaled(2.0)
    for _ in range(3):
        assert torch.equal(scaled.twice(X), X * 4)
    assert torch.equal(scaled.of(X), X * 2)


def test_what_runs_a_module_is_no_part_of_its_state() -> None:
    net = Net(2.0)
    net(X)
    assert [*net.state_dict()] == ["layer.weight"]
    before = net.__class__.forward.__get__(net)
    net(X)
    assert net.__class__.forward.__get__(net) is before
    assert before.traces == 1


@pytest.mark.filterwarnings("ignore:weft. <lambda> has more than 32 programs:UserWarning")
def test_modules_that_were_arguments_are_not_kept_by_more_than_programs() -> None:
    function = weft.hybridize(lambda net, x: net(x) * 2)
    found = []
    for number in range(48):
        net = nn.Linear(4, 4)
        torch.testing.assert_close(function(net, X), net(X) * 2)
        found.append(weakref.ref(net))
        del net
        gc.collect(0 if number % 8 else 2)
    gc.collect()
    assert sum(one() is not None for one in found) <= 32
