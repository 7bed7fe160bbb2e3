"""Results of any class are built again at each run, with that run's tensors; what cannot be right is refused."""

from __future__ import annotations

import dataclasses
import random
import sys
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft

pytestmark = pytest.mark.usefixtures("by_library")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: list[torch.Tensor] = dataclasses.field(default_factory=list)
    name: str = "output"


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Output
    scale: torch.Tensor


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Answer(OrderedDict[str, Any]):
    """A dictionary whose entries are attributes, as large libraries have it."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.first = next(iter(entries.values()), None)


class Rows(list[torch.Tensor]):
    pass


def dataclass(x: torch.Tensor) -> Any:
    return Output(x * 2, [x + 1, x * 2])


def nested(x: torch.Tensor) -> Any:
    return [{"a": Frozen(dataclass(x), x.sum())}, 3]


MAKERS = {
    "dataclass": dataclass,
    "frozen, nested": nested,
    "slots": lambda x: Slotted(x * 2),
    "dictionary": lambda x: Answer(a=x * 2, b=x + 1),
    "list": lambda x: Rows([x * 2, x + 1]),
    "plain object": lambda x: SimpleNamespace(a=x * 2, b=[SimpleNamespace(c=x + 1)], d="text"),
    "distribution": lambda x: torch.distributions.Normal(x * 2, x.exp(), validate_args=False),
}


def parts(thing: Any) -> list[Any]:
    """What an object consists of, flat."""
    if isinstance(thing, (torch.Tensor, str, int, float, bool, type(None))):
        return [thing]
    inner = [getattr(thing, name) for name in getattr(type(thing), "__slots__", ())]
    inner += getattr(thing, "__dict__", {}).values()
    items = [*thing.keys(), *thing.values()] if isinstance(thing, dict) else thing if isinstance(thing, list) else []
    return [part for item in (*inner, *items) for part in parts(item)]


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS.keys())
def test_an_object_is_what_eager_gives_at_each_run(maker: Any) -> None:
    hybrid = weft.hybridize(maker)
    for _ in range(3):
        x = torch.randn(2, 3)
        found, expected = hybrid(x), maker(x)
        assert type(found) is type(expected)
        assert len(parts(found)) == len(parts(expected)) > 0
        for ours, theirs in zip(parts(found), parts(expected), strict=True):
            assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs


def test_an_object_that_cannot_be_copied_is_refused() -> None:
    class Stubborn:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("not this one")

    with pytest.raises(weft.UnsupportedError, match=r"cannot be built again \(Stubborn\)"):
        weft.hybridize(lambda x: Stubborn(x * 2))(torch.ones(2))


@pytest.mark.parametrize("later", [lambda x: iter([x * 2]), lambda x: lambda: x])
def test_what_still_has_to_run_is_refused(later: Any) -> None:
    with pytest.raises(weft.UnsupportedError, match="cannot be built again"):
        weft.hybridize(later)(torch.ones(2))


def test_gradients_flow_out_of_objects() -> None:
    x = torch.randn(3, requires_grad=True)
    weft.hybridize(dataclass)(x).hidden[1].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_an_object_in_an_attribute_is_made_anew() -> None:
    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = Output(x * 3)
            return x

    net = weft.hybridize(Keeps())
    for value in (1.0, 2.0):
        net(torch.full((2,), value))
        assert net.last.logits.tolist() == [3 * value] * 2


DRAWS = {
    "random": lambda x: x * 2 if random.random() < 2 else x,
    "randint": lambda x: x * range(9)[random.randint(1, 5)],
    "shuffled": lambda x: x + random.sample(range(10), 3)[0],
    "numpy": lambda x: x * np.random.rand(1)[0],
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_numbers_that_python_draws_are_refused_with_the_line_and_drawn_again(draw: Any) -> None:
    before = random.getstate(), np.random.get_state()
    with pytest.raises(weft.UnsupportedError, match="draws random numbers in Python") as caught:
        weft.hybridize(draw)(torch.ones(2))
    assert "test_python_objects.py" in str(caught.value.where)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1][1])
    assert sys.getprofile() is None or "Look" not in type(sys.getprofile()).__name__


def test_numbers_that_another_thread_draws_meanwhile_are_none_of_its_business() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=random.random)
        thread.start()
        thread.join()
        return x * 2

    assert weft.hybridize(function)(torch.ones(2)).tolist() == [2.0, 2.0]


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def test_a_count_in_an_attribute_is_right_at_every_call() -> None:
    net = weft.hybridize(Counts())
    assert [net(torch.ones(1)).item() for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert net.calls == 6
    assert net.forward.traces == 1


def test_a_flag_that_is_set_once_costs_one_more_program() -> None:
    class Starts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.started = False
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.started:
                self.scale.copy_(x.abs().max())
                self.started = True
            return x / self.scale

    net = weft.hybridize(Starts())
    results = [net(torch.full((2,), value)).tolist() for value in (4.0, 2.0, 1.0)]
    assert results == [[1.0, 1.0], [0.5, 0.5], [0.25, 0.25]]
    assert net.forward.traces == 2


def test_dictionaries_that_give_other_things_than_they_hold_are_left_alone() -> None:
    class Makers(OrderedDict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return super().__getitem__(key)()

    makers = Makers(relu=torch.nn.ReLU)
    net = weft.hybridize(lambda x: makers["relu"](x) * 2, whole=True)
    for size in (3, 4):
        x = torch.randn(size)
        torch.testing.assert_close(net(x), x.relu() * 2)
    assert dict(makers.items()) == {"relu": torch.nn.ReLU}


def test_another_forward_of_the_class_that_a_forward_goes_on_to_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    net, x = weft.hybridize(Twice(3, 3)), torch.ones(2, 3)
    before = net(x)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: nn.functional.linear(x, self.weight))
    torch.testing.assert_close(net(x), before - 2 * net.bias)
