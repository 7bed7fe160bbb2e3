"""Ordinary Python around tensors: lists that code and others change, other bases, descriptors, contexts."""

from __future__ import annotations

import contextlib
import enum
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import Tensor, nn

import weft
from weft.config import overrides

Change = Callable[[Any, Tensor], Any]
CALLS = [((torch.arange(1.0, 4.0),), {})] * 5


def put(key: Any, thing: Callable[[Tensor], Any]) -> Change:
    """Put something in a container."""
    return lambda held, x: held.__setitem__(key, thing(x))


def number(key: Any) -> Callable[[Any, int], Any]:
    """What somebody else puts there before each call."""
    return lambda held, call: held.__setitem__(key, float(call))


def text(key: Any) -> Callable[[Any, int], Any]:
    """The same with text."""
    return lambda held, call: held.__setitem__(key, "z" * call)


def longer(held: Any, call: int) -> None:
    """Append a number."""
    held.append(call)


def turned(held: Any, _: Tensor) -> None:
    """Let the first item be the last."""
    held.append(held.pop(0))


def inside_out(held: Any, _: Tensor) -> None:
    """Swap two items by slices."""
    held[1:3] = held[2:0:-1]


# A container, what the code does to it, what it computes then, and what others do to it between calls.
LISTS: dict[str, tuple[Callable[[], Any], Change, Change, Callable[[Any, int], Any]]] = {
    "an item": (lambda: [1.0, 2.0], put(1, lambda _: 7.0), lambda held, x: x * held[0], number(0)),
    "not read": (lambda: [1.0, 2.0], put(1, lambda _: 7.0), lambda held, x: x, number(0)),
    "slices": (lambda: [1.0, 2.0, 3.0, 4.0], inside_out, lambda held, x: x * held[0] + sum(held[1:]), number(0)),
    "turned": (lambda: [1.0, 2.0, 3.0], turned, lambda held, x: x * held[0], number(1)),
    "turned texts": (lambda: ["a", "bb", "ccc"], turned, lambda held, x: x * len(held[0]), text(0)),
    "a text": (lambda: ["a", "b"], put(1, lambda _: "u"), lambda held, x: x, text(0)),
    "a tensor": (lambda: [3.0, 1.0, 2.0], put(1, lambda x: x * 2), lambda held, x: x * held[0], number(0)),
    "a tensor and a text": (lambda: [3.0, "b"], put(0, lambda x: x * 2), lambda held, x: x, text(1)),
    "sorted": (lambda: [3.0, 1.0, 2.0], lambda held, _: held.sort(), lambda held, x: x * held[0], number(1)),
    "longer": (
        lambda: [1.0, 2.0],
        put(0, lambda _: 7.0),
        lambda held, x: x * sum(held),
        lambda held, n: held.append(n),
    ),
    "a queue": (lambda: deque([1.0, 2.0, 3.0]), put(2, lambda _: 5.0), lambda held, x: x * held[0], number(0)),
    "a dictionary": (lambda: {"a": 1.0}, put("k", lambda _: 7.0), lambda held, x: x * held["a"], number("a")),
}


@pytest.mark.parametrize("way", ["hybridize", "step"])
@pytest.mark.parametrize("name", LISTS)
def test_a_container_that_code_and_others_change_holds_what_both_put_there(name: str, way: str) -> None:
    begin, change, compute, between = LISTS[name]

    def make() -> Work:
        held = begin()

        def function(x: Tensor) -> Tensor:
            change(held, x)
            return compute(held, x)

        return Work(function, CALLS, watched=held, before=lambda call: between(held, call))

    with overrides(whole="off"):
        assert_every_way(make, way)


class Twice:
    """One answer."""

    def answer(self, x: Tensor) -> Tensor:
        return x * 2


class Seven:
    """Another one."""

    def answer(self, x: Tensor) -> Tensor:
        return x + 7


def other_bases() -> Work:
    class Net(Twice, nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.answer(x)

    def before(call: int) -> None:
        Net.__bases__ = (Twice, nn.Module) if call % 2 else (Seven, nn.Module)

    return Work(Net(), CALLS, before=before)


def other_class() -> Work:
    class Net(Twice, nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.answer(x)

    class Other(Seven, Net):
        pass

    net = Net()

    def before(call: int) -> None:
        net.__class__ = Other if call % 2 else Net

    return Work(net, CALLS, before=before)


class Weakly:
    """A descriptor that asks for no object to be None."""

    def __init__(self) -> None:
        self.found: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    def __get__(self, thing: Any, _: Any = None) -> float:
        return self.found.get(thing, 1.0)

    def __set__(self, thing: Any, value: float) -> None:
        self.found[thing] = value


def descriptor() -> Work:
    class Net(nn.Module):
        scale = Weakly()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    net = Net()
    return Work(net, CALLS, before=lambda call: setattr(net, "scale", float(call)))


class Kind(enum.Enum):
    """Two kinds."""

    ONE = 1
    TWO = 2


def enumerated() -> Work:
    state = types.SimpleNamespace(kind=Kind.ONE)

    def function(x: Tensor) -> Tensor:
        match state.kind:
            case Kind.ONE:
                return x * 2
            case _:
                return x + 5

    return Work(function, CALLS, before=lambda call: setattr(state, "kind", [Kind.ONE, Kind.TWO][call % 2]))


def own_contexts() -> Work:
    depth, seen = [1.0], []

    class Scope:
        def __enter__(self) -> None:
            depth.append(3.0)

        def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
            depth.pop()
            seen.append(kind is None)
            return kind is ZeroDivisionError

    @contextlib.contextmanager
    def deeper() -> Any:
        depth[0] += 1
        try:
            yield depth[0]
        finally:
            depth[0] -= 1

    def function(x: Tensor) -> Tensor:
        y = x
        with Scope(), deeper() as scale:
            y = x * depth[-1] * scale
            x = x / (1 // 0)
        return y * depth[-1] + x

    return Work(function, CALLS, watched=(depth, seen), before=lambda call: depth.__setitem__(0, call + 1.0))


def class_attributes() -> Work:
    class Net(nn.Module):
        scale: ClassVar[float] = 1.0
        calls: ClassVar[int] = 0

        def forward(self, x: Tensor) -> Tensor:
            Net.calls += 1
            return x * self.scale + type(self).calls

    net = Net()

    def before(call: int) -> None:
        if call == 2:
            Net.scale = 3.0
        if call == 3:
            net.scale = 4.0  # type: ignore[misc]
        if call == 4:
            del net.scale

    return Work(net, CALLS, before=before)


def defaults_of_keywords() -> Work:
    def scaled(x: Tensor, *, by: float = 1.0) -> Tensor:
        return x * by

    def function(x: Tensor) -> Tensor:
        return scaled(x) + 1

    def before(call: int) -> None:
        scaled.__kwdefaults__ = {"by": float(call)}

    return Work(function, CALLS, before=before)


AROUND = [
    other_bases,
    other_class,
    descriptor,
    enumerated,
    own_contexts,
    class_attributes,
    defaults_of_keywords,
]


@pytest.mark.parametrize("way", ["hybridize", "step", "lazy"])
@pytest.mark.parametrize("make", AROUND)
def test_what_others_change_around_code_is_noticed(make: Callable[[], Work], way: str) -> None:
    with overrides(whole="off"):
        assert_every_way(make, way)


def test_what_a_refused_call_puts_in_a_python_module_is_put_back() -> None:
    place = types.ModuleType("place")

    def function(x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = x.detach() * 2
        place.last = x + y.clone().mean()  # type: ignore[attr-defined]
        return x

    with overrides(whole="off"):
        assert_every_way(lambda: Work(function, CALLS), "hybridize")
    place.__dict__.pop("last", None)
    with pytest.raises(weft.UnsupportedError):
        weft.hybridize(function, whole=True)(torch.ones(3))
    assert not hasattr(place, "last")
