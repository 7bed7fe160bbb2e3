"""A call that is refused, or whose code eager runs to find its exception, leaves everything as it was before it."""

from __future__ import annotations

import contextvars
import pickle
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.ways import Refused, Work, difference
from torch import nn

LOCAL = threading.local()
LOCAL.items = []
CONTEXT: contextvars.ContextVar[list[Any]] = contextvars.ContextVar("CONTEXT")


class Thing:
    def __init__(self) -> None:
        self.items: list[Any] = [1]
        self.table: dict[Any, Any] = {}
        self.names: set[Any] = set()
        self.queue: deque[Any] = deque([0])
        self.number = 0
        self.tensor = torch.zeros(2)
        self.last: Any = None
        self.array = np.zeros(2)
        self.rng = np.random.default_rng(0)
        self.own = random.Random(0)


class Slotted:
    __slots__ = ("last",)


def fails(x: torch.Tensor) -> Any:
    """Ask for elements that a stand-in has not."""
    return x.detach().numpy().tobytes()


def refused(x: torch.Tensor) -> Any:
    return bool(x.sum() > 1e9)


def cannot_be_traced(x: torch.Tensor) -> Any:
    """Raise an exception of PyTorch's under a trace, and nothing in eager."""
    pickle.dumps(x)


def appends(x: torch.Tensor, thing: Thing) -> None:
    thing.items.append(x * 2)


def puts_key(x: torch.Tensor, thing: Thing) -> None:
    thing.table["h"] = x * 2


def puts_constant(x: torch.Tensor, thing: Thing) -> None:
    thing.table[2] = torch.arange(4.0)


def counts(x: torch.Tensor, thing: Thing) -> None:
    thing.number += 1
    thing.table["n"] = thing.number


def adds_to_set(x: torch.Tensor, thing: Thing) -> None:
    thing.names.add("name")


def turns_queue(x: torch.Tensor, thing: Thing) -> None:
    thing.queue.append(1)
    thing.queue.popleft()


def writes_tensor(x: torch.Tensor, thing: Thing) -> None:
    thing.tensor.add_(1)


def writes_argument(x: torch.Tensor, thing: Thing) -> None:
    x.mul_(3)


def keeps_tensor(x: torch.Tensor, thing: Thing) -> None:
    thing.last = x * 2


def new_attribute(x: torch.Tensor, thing: Thing) -> None:
    thing.other = x  # type: ignore[attr-defined]


def deletes(x: torch.Tensor, thing: Thing) -> None:
    del thing.items[0]
    del thing.last


def of_thread(x: torch.Tensor, thing: Thing) -> None:
    LOCAL.h = x * 2
    LOCAL.items.append(1)


def draws(x: torch.Tensor, thing: Thing) -> None:
    x + random.random() + np.random.rand()


def draws_of_own(x: torch.Tensor, thing: Thing) -> None:
    x + thing.rng.normal() + thing.own.random()


def draws_of_torch(x: torch.Tensor, thing: Thing) -> None:
    thing.last = torch.rand(2) + x


def seeds(x: torch.Tensor, thing: Thing) -> None:
    torch.manual_seed(3)


def writes_array(x: torch.Tensor, thing: Thing) -> None:
    thing.array[0] += 1


def sorts(x: torch.Tensor, thing: Thing) -> None:
    thing.items.extend([3, 2])
    thing.items.sort()


def nests(x: torch.Tensor, thing: Thing) -> None:
    thing.table.setdefault("inner", {}).setdefault("list", []).append(x + 1)


EFFECTS = [
    appends, puts_key, puts_constant, counts, adds_to_set, turns_queue, writes_tensor, writes_argument, keeps_tensor,
    new_attribute, deletes, of_thread, draws, draws_of_own, draws_of_torch, seeds, writes_array, sorts,
    nests,
]  # fmt: skip


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
@pytest.mark.parametrize("end", [refused, fails, cannot_be_traced], ids=lambda end: end.__name__)
@pytest.mark.parametrize("way", ["hybridize", "step"])
def test_a_refused_call_leaves_all_as_it_was(effect: Callable[..., None], end: Callable[..., Any], way: str) -> None:
    def make() -> Work:
        LOCAL.__dict__.clear()
        LOCAL.items = []
        thing = Thing()

        def function(x: torch.Tensor, given: Thing) -> Any:
            effect(x, given)
            end(x)
            return x + 1

        torch.manual_seed(0)
        return Work(function, [((torch.ones(2), thing), {})], watched=LOCAL)

    with pytest.raises(Refused):  # where something is left, there is a sentence instead
        raise AssertionError(difference(make, way))


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(()))
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        found = self.norm(x * self.scale)
        self.last = found
        refused(found)
        return found


@pytest.mark.parametrize("way", ["hybridize", "step"])
def test_a_refused_module_keeps_its_buffers(way: str) -> None:
    with pytest.raises(Refused):
        raise AssertionError(difference(lambda: Work(Owner(), [((torch.randn(3, 2),), {})]), way))


def test_the_fallback_runs_once() -> None:
    import weft

    thing = Thing()

    def function(x: torch.Tensor) -> Any:
        thing.items.append(1)
        thing.number += 1
        cannot_be_traced(x)
        return x + 1

    with pytest.warns(UserWarning, match="imperatively"):
        weft.hybridize(function, fallback="eager")(torch.ones(2))
    assert (thing.items, thing.number) == ([1, 1], 1)
