"""The comparison of ways to run a thing sees every kind of difference, and none where there is none."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests import ways
from tests.ways import Refused, Way, Work, assert_every_way
from torch import nn

from weft.errors import InternalError, UnsupportedError

Make = Callable[[], Work]


class Net(nn.Module):
    """Keeps what it saw, counts, normalises and draws."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
        self.seen: list[Any] = []
        self.count = 0

    def forward(self, x: torch.Tensor, notes: dict[str, Any]) -> Any:
        self.count += 1
        self.seen.append(x)
        notes["last"] = self.layers(x)
        notes["log"].append(self.count)
        return notes["last"].sum(), x, notes


def net_work() -> Work:
    net, notes = Net(), {"log": []}
    torch.manual_seed(1)
    return Work(net, [((torch.randn(4, 3), notes), {}) for _ in range(2)], backward=True)


def function_work() -> Work:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu()

    return Work.repeated(function, torch.ones(3))


def around(change: Callable[..., Any]) -> Way:
    """Eager with one fault: `change(thing, arguments, keywords)` makes the call."""
    return Way(lambda thing: lambda *args, **kwargs: change(thing, args, kwargs))


def faithful(thing, args, kwargs):
    return thing(*args, **kwargs)


def other_bits(thing, args, kwargs):
    loss, x, notes = thing(*args, **kwargs)
    return loss + 1, x, notes


def other_object(thing, args, kwargs):
    loss, x, notes = thing(*args, **kwargs)
    return loss, x, dict(notes)


def other_tensor(thing, args, kwargs):
    loss, x, notes = thing(*args, **kwargs)
    return loss, x.view_as(x), notes


def other_dtype(thing, args, kwargs):
    loss, x, notes = thing(*args, **kwargs)
    return loss.double(), x, notes


def no_gradient(thing, args, kwargs):
    with torch.no_grad():
        return thing(*args, **kwargs)


def shared_argument_lost(thing, args, kwargs):
    return thing(*copy.copy(args[:1]), {**args[1]})


def log_lost(thing, args, kwargs):
    result = thing(*args, **kwargs)
    args[1]["log"].pop()
    return result


def count_lost(thing, args, kwargs):
    result = thing(*args, **kwargs)
    thing.count = 0
    return result


def seen_copied(thing, args, kwargs):
    result = thing(*args, **kwargs)
    thing.seen[-1] = thing.seen[-1].clone()
    return result


def statistics_lost(thing, args, kwargs):
    before = copy.deepcopy(thing.layers[1].state_dict())
    result = thing(*args, **kwargs)
    thing.layers[1].load_state_dict(before)
    return result


def argument_written(thing, args, kwargs):
    result = thing(*args, **kwargs)
    args[0].data.add_(1)
    return result


def drawn_once_more(thing, args, kwargs):
    result = thing(*args, **kwargs)
    torch.rand(1)
    return result


def drawn_from_numpy(thing, args, kwargs):
    np.random.rand()
    return thing(*args, **kwargs)


def drawn_from_python(thing, args, kwargs):
    random.random()
    return thing(*args, **kwargs)


def raised(thing, args, kwargs):
    raise InternalError("a mistake")


FAULTS = (
    other_bits,
    other_object,
    other_tensor,
    other_dtype,
    no_gradient,
    shared_argument_lost,
    log_lost,
    count_lost,
    seen_copied,
    statistics_lost,
    argument_written,
    drawn_once_more,
    drawn_from_numpy,
    drawn_from_python,
    raised,
)


def test_a_faithful_way_has_no_difference(monkeypatch):
    monkeypatch.setitem(ways.WAYS, "faulty", around(faithful))
    assert ways.difference(net_work, "faulty") is None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, monkeypatch):
    monkeypatch.setitem(ways.WAYS, "faulty", around(fault))
    assert ways.difference(net_work, "faulty") is not None


def test_another_message_and_another_class_of_an_exception_are_seen(monkeypatch):
    def make() -> Work:
        def function(x):
            raise ValueError("first")

        return Work.repeated(function, torch.ones(1))

    for error in (ValueError("second"), TypeError("first"), None):

        def fault(thing, args, kwargs, error=error):
            if error is not None:
                raise error

        monkeypatch.setitem(ways.WAYS, "faulty", around(fault))
        assert ways.difference(make, "faulty") is not None


def test_closures_counted_up_are_compared(monkeypatch):
    def make() -> Work:
        count = 0

        def function(x):
            nonlocal count
            count += 1
            return x

        return Work.repeated(function, torch.ones(1))

    def skipping(thing, args, kwargs):
        return args[0]

    monkeypatch.setitem(ways.WAYS, "faulty", around(skipping))
    assert ways.difference(make, "faulty") is not None


def test_a_refusal_is_given_back_and_must_leave_nothing_behind(monkeypatch):
    def refuse(thing, args, kwargs):
        raise UnsupportedError("no")

    def refuse_too_late(thing, args, kwargs):
        thing(*args, **kwargs)
        raise UnsupportedError("no")

    monkeypatch.setitem(ways.WAYS, "faulty", around(refuse))
    with pytest.raises(Refused):
        ways.difference(net_work, "faulty")
    assert isinstance(assert_every_way(net_work, "faulty", refused=["faulty"])["faulty"], UnsupportedError)
    monkeypatch.setitem(ways.WAYS, "faulty", around(refuse_too_late))
    with pytest.raises(AssertionError, match="after a refusal"):
        ways.difference(net_work, "faulty")


def test_every_way_runs_a_plain_function():
    assert assert_every_way(function_work, *ways.QUICK) == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dynamo_runs_a_plain_function():
    assert assert_every_way(function_work, "dynamo") == {}
