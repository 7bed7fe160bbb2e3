"""What code reads by ways that no name in it tells is compared: other values there are noticed at the next call."""

from __future__ import annotations

import builtins
import collections
import configparser
import contextlib
import dataclasses
import decimal
import functools
import hashlib
import itertools
import logging
import operator
import queue
import random
import sys
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

Change = Callable[[int], Any]
NUMBERS = itertools.count()


class Settings:
    """Numbers in attributes."""

    def __init__(self) -> None:
        self.scale, self.scale_a, self._hidden = 1.0, 1.0, 1.0
        self.inner = types.SimpleNamespace(scale=1.0)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    twice = functools.partialmethod(scaled)

    @functools.cached_property
    def doubled(self) -> float:
        return self.scale * 2


def work(function: Callable[..., Any], change: Change, *others: Any, watched: Any = None) -> Work:
    calls = [((torch.randn(2, 3), *others), {}) for _ in range(5)]
    return Work(function, calls, before=change, watched=watched)


def setting(thing: Any, name: str = "scale") -> Change:
    return lambda number: setattr(thing, name, number + 1.5)


def later(thing: Any, name: str = "scale", value: Any = 7.0) -> Change:
    return lambda number: setattr(thing, name, value) if number == 2 else None


def item(thing: Any, key: Any) -> Change:
    return lambda number: thing.__setitem__(key, number + 1.5)


def computed_attribute() -> Work:
    s, k = Settings(), "a"
    return work(lambda x: x * getattr(s, f"scale_{k}"), setting(s, "scale_a"))


def attribute_that_is_given() -> Work:
    s = Settings()
    return work(lambda x, name: x * getattr(s, name), setting(s), "scale")


def all_attributes() -> Work:
    s = Settings()
    return work(lambda x: x * sum(v for k, v in s.__dict__.items() if k.startswith("sc")), setting(s))


def fields() -> Work:
    @dataclasses.dataclass
    class Point:
        scale: float = 1.0

    p = Point()
    return work(lambda x: x * sum(getattr(p, one.name) for one in dataclasses.fields(p)), setting(p))


def attrgetter() -> Work:
    s, get = Settings(), operator.attrgetter("inner.scale")
    return work(lambda x: x * get(s), setting(s.inner))


def methodcaller() -> Work:
    s, call = Settings(), operator.methodcaller("scaled", 2.0)
    return work(lambda x: x * call(s), setting(s))


def weak_reference() -> Work:
    s = Settings()
    r = weakref.ref(s)
    return work(lambda x: x * r().scale + (r() is not s), setting(s), watched=s)


def weak_proxy() -> Work:
    s = Settings()
    r = weakref.proxy(s)
    return work(lambda x: x * r.scale + (r == 1) * s.scale, setting(s), watched=s)


def weak_method() -> Work:
    s = Settings()
    r = weakref.WeakMethod(s.scaled)
    return work(r(), setting(s), watched=s)


def partial_method() -> Work:
    s = Settings()
    return work(s.twice, setting(s))


def cached_property() -> Work:
    s = Settings()

    def change(number: int) -> None:
        s.scale = number + 1.5
        if number % 2:
            vars(s).pop("doubled", None)

    return work(lambda x: x * s.doubled, change, watched=s)


def property_of_a_factory() -> Work:
    def hidden(name: str) -> property:
        return property(lambda self: getattr(self, "_" + name))

    class Shown(Settings):
        shown = hidden("hidden")

    s = Shown()
    return work(lambda x: x * s.shown, setting(s, "_hidden"))


def descriptor() -> Work:
    class Hidden:
        def __set_name__(self, owner: type, name: str) -> None:
            self.name = "_" + name

        def __get__(self, thing: Any, owner: type) -> Any:
            return thing.__dict__[self.name]

    class Shown(Settings):
        hidden = Hidden()

    s = Shown()
    return work(lambda x: x * s.hidden, setting(s, "_hidden"))


def metaclass_property() -> Work:
    class Meta(type):
        @property
        def scale(cls) -> Any:
            return cls.hidden

    class Shown(metaclass=Meta):
        hidden = 1.0

    return work(lambda x: x * Shown.scale, setting(Shown, "hidden"))


def metaclass_attribute() -> Work:
    class Meta(type):
        scale = 1.0

    class Shown(metaclass=Meta):
        pass

    return work(lambda x: x * Shown.scale, setting(Meta))


def object_in(make: Callable[[Any], Any], take: Callable[[Any], Any]) -> Callable[[], Work]:
    def made() -> Work:
        s = Settings()
        held = make(s)
        return work(lambda x: x * take(held).scale, setting(s))

    return made


def array_of_objects() -> Work:
    a = np.array([1.0, 2.0], dtype=object)
    return work(lambda x: x * a[0], item(a, 0))


def view_of_bytes() -> Work:
    b = bytearray(range(10))
    v = memoryview(b)
    return work(lambda x: x * v[2], lambda number: b.__setitem__(2, number))


def decimal_context() -> Work:
    def change(number: int) -> None:
        decimal.getcontext().prec = 3 + number

    return work(lambda x: x * float(decimal.Decimal(1) / decimal.Decimal(7)), change)


def chain_map() -> Work:
    inner = {"scale": 1.0}
    c = collections.ChainMap({}, inner)
    return work(lambda x: x * c["scale"], item(inner, "scale"))


def config_parser() -> Work:
    c = configparser.ConfigParser()
    c["a"] = {"scale": "1.0"}
    return work(lambda x: x * float(c["a"]["scale"]), lambda number: c["a"].update(scale=str(number + 0.5)))


def logger() -> Work:
    one = logging.Logger("of a test")  # noqa: LOG001 - one that nobody else gets
    levels = (logging.DEBUG, logging.ERROR)
    return work(
        lambda x: x + 1 if one.isEnabledFor(logging.INFO) else x, lambda number: one.setLevel(levels[number % 2])
    )


def event() -> Work:
    e = threading.Event()
    return work(lambda x: x + 1 if e.is_set() else x, lambda number: e.set() if number % 2 else e.clear())


def call_method() -> Work:
    class Number:
        def __call__(self) -> float:
            return 2.0

    n = Number()
    return work(lambda x: x * n(), lambda number: setattr(Number, "__call__", lambda _: float(number)))


def class_of_an_object() -> Work:
    class One:
        scale = 1.0

    class Two:
        scale = 2.0

    s = One()
    return work(lambda x: x * s.scale, lambda number: setattr(s, "__class__", (One, Two)[number % 2]))


class Twice(nn.Module):
    """A layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Thrice(nn.Module):
    """Another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


def class_of_a_module() -> Work:
    net = nn.Sequential(Twice())
    return work(net, later(net[0], "__class__", Thrice))


def forward_of_a_class() -> Work:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    return work(nn.Sequential(Layer()), later(Layer, "forward", lambda _, x: x * 5))


def forward_of_its_own_class() -> Work:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    return work(Layer(), later(Layer, "forward", lambda _, x: x * 5))


def its_own_class() -> Work:
    layer = Twice()
    return work(layer, later(layer, "__class__", Thrice))


def name_among_builtins() -> Work:
    name = f"weft_test_{next(NUMBERS)}"
    setattr(builtins, name, 1.0)
    return work(eval(f"lambda x: x * {name}", {}), setting(builtins, name))


def of_text(text: str, later_names: dict[str, Any]) -> Callable[[], Work]:
    def made() -> Work:
        space: dict[str, Any] = {}
        exec(text, space)
        return work(space["f"], lambda number: space.update(later_names) if number == 2 else None)

    return made


def module_in_a_closure() -> Work:
    m = types.ModuleType("settings of a test")
    m.scale = 1.0  # type: ignore[attr-defined]
    return work(lambda x: x * m.scale, setting(m))


def imported_inside(text: str) -> Callable[[], Work]:
    def made() -> Work:
        name = f"weft_test_{next(NUMBERS)}"
        m = types.ModuleType(name)
        m.scale = 1.0  # type: ignore[attr-defined]
        sys.modules[name] = m
        space: dict[str, Any] = {}
        exec(f"def f(x):\n    {text.format(name)}\n", space)
        return work(space["f"], setting(m))

    return made


class Plain:
    """Something without attributes of its own."""

    scale_of_class = 1.0

    def method(self) -> float:
        return 1.0


class Derived(Plain):
    """Something that is derived from it."""


def fresh(kind: type = Derived) -> tuple[Any, type]:
    made = type(kind.__name__, kind.__bases__, dict(vars(kind)))
    return made(), made


def attribute_that_shadows() -> Work:
    s, _ = fresh()
    return work(lambda x: x * s.scale_of_class, later(s, "scale_of_class"))


def method_that_shadows() -> Work:
    s, _ = fresh()
    return work(lambda x: x * s.method(), later(s, "method", lambda: 7.0))


def class_attribute_that_shadows() -> Work:
    _, kind = fresh()
    return work(lambda x: x * kind.scale_of_class, later(kind, "scale_of_class"))


def method_of_a_derived_class() -> Work:
    s, kind = fresh()
    return work(lambda x: x * s.method(), later(kind, "method", lambda _: 7.0))


def attribute_that_is_missing() -> Work:
    s, _ = fresh()
    return work(lambda x: x * s.scale if hasattr(s, "scale") else x, later(s))


def attribute_of_an_error() -> Work:
    s, _ = fresh()

    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * s.scale
        except AttributeError:
            return x - 1

    return work(function, later(s))


def default_of_a_missing_attribute() -> Work:
    s, kind = fresh()
    return work(lambda x: x * getattr(s, "scale", 1.0), later(kind))


def closed_over_name_that_is_not_bound() -> Work:
    def bind() -> None:
        nonlocal late
        late = 7.0

    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * late
        except NameError:
            return x - 1

    change: Change = lambda number: bind() if number == 2 else None  # noqa: E731
    if len("") > 0:
        late = 0.0
    return work(function, change)


def deeply_nested() -> Work:
    a = [[[[[[[[1.0]]]]]]]]
    return work(lambda x: x * a[0][0][0][0][0][0][0][0], item(a[0][0][0][0][0][0][0], 0))


def number_that_walks(make: Callable[[], Any], get: Callable[[Any], float], put: Callable[[Any, float], Any]) -> Any:
    """Numbers that are computed one of another lie where those before them lay."""

    def made() -> Work:
        held = make()
        calls = [((torch.ones(2),), {}) for _ in range(10)]
        return Work(lambda x: x * get(held), calls, before=lambda _: put(held, get(held) * 1.5))

    return made


def optimizer_rate() -> Work:
    o = torch.optim.SGD([nn.Parameter(torch.ones(3))], 0.1)
    return work(lambda x: x * o.param_groups[0]["lr"], item(o.param_groups[0], "lr"))


def distribution() -> Work:
    d = torch.distributions.Normal(torch.zeros(3), torch.ones(3), validate_args=False)
    return work(d.log_prob, later(d, "loc", torch.full((3,), 5.0)))


FUNCTIONS = (
    *(computed_attribute, attribute_that_is_given, all_attributes, fields, attrgetter, methodcaller, weak_reference),
    *(weak_proxy, weak_method, partial_method, cached_property, property_of_a_factory, descriptor, metaclass_property),
    *(metaclass_attribute, array_of_objects, view_of_bytes, decimal_context, chain_map, config_parser, logger, event),
    *(call_method, class_of_an_object, class_of_a_module, forward_of_a_class, name_among_builtins),
    *(forward_of_its_own_class, its_own_class),
    *(module_in_a_closure, attribute_that_shadows, method_that_shadows, class_attribute_that_shadows),
    *(method_of_a_derived_class, attribute_that_is_missing, attribute_of_an_error, default_of_a_missing_attribute),
    *(closed_over_name_that_is_not_bound, deeply_nested, optimizer_rate, distribution),
)
SEEN: dict[str, Callable[[], Work]] = {
    **{function.__name__: function for function in FUNCTIONS},
    "in a tuple": object_in(lambda s: (s, 1), lambda held: held[0]),
    "in a set": object_in(lambda s: {s}, lambda held: next(iter(held))),
    "in a frozen set": object_in(lambda s: frozenset([s]), lambda held: next(iter(held))),
    "as a key": object_in(lambda s: {s: 1}, lambda held: next(iter(held))),
    "in a queue": object_in(lambda s: collections.deque([s]), lambda held: held[0]),
    "a global name that is not there": of_text(
        "def f(x):\n    try:\n        return x * SCALE\n    except NameError:\n        return x - 1\n", {"SCALE": 7.0}
    ),
    "a builtin that is shadowed": of_text("def f(x):\n    return x * max(1.0, 2.0)\n", {"max": lambda *_: 7.0}),
    "a class that is shadowed": of_text("def f(x):\n    return x * len(type(x).__name__)\n", {"type": lambda _: int}),
    "a number's class that is shadowed": of_text("def f(x):\n    return x * float('2')\n", {"float": lambda _: 7.0}),
    "an identity that is shadowed": of_text("def f(x):\n    return x * (id(f) < 9)\n", {"id": lambda _: 1}),
    "a module that is imported inside": imported_inside("import {0} as g; return x * g.scale"),
    "a name that is imported inside": imported_inside("from {0} import scale; return x * scale"),
    "a number of a list": number_that_walks(lambda: [1.0], lambda a: a[0], lambda a, n: item(a, 0)(n - 1.5)),
    "a number of a nested list": number_that_walks(
        lambda: [[1.0]], lambda a: a[0][0], lambda a, n: a.__setitem__(0, [n])
    ),
    "a number of a dictionary": number_that_walks(
        lambda: {"a": [1.0]}, lambda a: a["a"][0], lambda a, n: item(a["a"], 0)(n - 1.5)
    ),
    "a number of a set": number_that_walks(lambda: {1.0}, sum, lambda a, n: (a.clear(), a.add(n))),
}


@pytest.mark.parametrize("name", SEEN)
def test_it_is_seen(name: str) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(decimal.localcontext())
        assert_every_way(SEEN[name], "library")


def taken(make: Callable[[], Any], take: Callable[[Any], Callable[[], Any]]) -> Callable[[], Work]:
    def made() -> Work:
        source = make()
        get = take(source)
        return work(lambda x: x + get(), lambda _: None)

    return made


def iterator_by_default() -> Work:
    def function(x: torch.Tensor, numbers: Any = itertools.count()) -> torch.Tensor:  # noqa: B008
        return x + next(numbers)

    return work(function, lambda _: None)


def iterator_in_a_tuple() -> Work:
    pair = (itertools.count(), 1)
    return work(lambda x: x + next(pair[0]), lambda _: None)


def full(kind: Any) -> Any:
    found = kind()
    for number in range(9):
        found.put(number)
    return found


REFUSED: dict[str, Callable[[], Work]] = {
    "next of an iterator": taken(lambda: iter(range(9)), lambda it: it.__next__),
    "next of a generator": taken(lambda: (n for n in range(9)), lambda it: it.__next__),
    "a partial next": taken(itertools.count, lambda it: functools.partial(next, it)),
    "a queue": taken(lambda: full(queue.Queue), lambda q: q.get),
    "a simple queue": taken(lambda: full(queue.SimpleQueue), lambda q: q.get),
    "a method of a queue": taken(lambda: full(queue.SimpleQueue), lambda q: q.get),
    "a digest": taken(hashlib.sha1, lambda h: lambda: (h.update(b"a"), h.digest()[0])[1]),
    "a sequence of seeds": taken(lambda: np.random.SeedSequence(1), lambda s: lambda: int(s.spawn(1)[0].entropy)),
    "a method of a generator of NumPy": taken(
        lambda: np.random.default_rng(0), lambda r: functools.partial(r.integers, 10)
    ),
    "a sample of a generator": taken(lambda: random.Random(0), lambda r: lambda: r.sample([1, 2, 3], 1)[0]),
    "a default": iterator_by_default,
    "a tuple": iterator_in_a_tuple,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_taken_away_is_refused(name: str) -> None:
    assert_every_way(REFUSED[name], "library", refused=("library",))


def test_other_threads_go_on_with_an_iterator_while_code_is_traced() -> None:
    numbers, found = itertools.count(), []

    def function(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: found.append(next(numbers)))
        thread.start()
        thread.join(30)
        return x * 2

    weft.hybridize(function)(torch.ones(2))
    assert found == [*range(len(found))]
    assert len(found) >= 1


def test_a_parameter_that_an_object_holds_is_given_back_itself() -> None:
    holder = types.SimpleNamespace(weight=nn.Parameter(torch.ones(4)))
    hybrid = weft.hybridize(lambda x: (x * 2, [holder.weight, holder.weight.detach()]))
    for _ in range(3):
        assert hybrid(torch.ones(2))[1][0] is holder.weight
