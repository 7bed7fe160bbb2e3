"""Ordinary Python around a function: what it changes, and what others change of it between calls, is as in eager."""

from __future__ import annotations

import abc
import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import gc
import math
import os
import random
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn
from torch.nn import functional
from torch.nn.functional import relu
from torch.nn.utils import parametrizations, parametrize

import weft
from weft.config import overrides

CASES: dict[str, Callable[[], Work]] = {}
NOT_STEPS = {"the gradient is taken away inside", "an intermediate gradient is kept"}


def case(make: Callable[[], Work]) -> Callable[[], Work]:
    CASES[make.__name__.replace("_", " ")] = make
    return make


def row() -> torch.Tensor:
    return torch.arange(4.0)


def calls(thing: Callable[..., Any], count: int = 4, **options: Any) -> Work:
    return Work(thing, [((row(),), {})] * count, **options)


def square() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


@case
def a_module_gets_a_function_as_forward_that_looks_at_a_list() -> Work:
    net, factors = square(), [2.0]
    net[0].forward = lambda x: x * factors[0]

    def before(number: int) -> None:
        factors[0] = number + 1.0

    return calls(net, before=before)


@case
def a_module_gets_a_function_as_forward_that_counts() -> Work:
    net, counts = square(), [0]
    inner = net[0].forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        return inner(x) * counts[0]

    net[0].forward = forward
    return calls(net, watched=[counts])


@case
def a_module_gets_other_forwards_of_every_kind_between_calls() -> Work:
    net = square()

    class Scaling:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 7

    def twice(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, layer.weight) * 2

    forwards = (
        types.MethodType(twice, net[0]),
        types.MethodType(lambda layer, x: layer.weight @ x, net[0]),
        functools.partial(twice, net[0]),
        lambda x: x * 3,
        Scaling(),
        Scaling(),
    )

    def before(number: int) -> None:
        if number:
            net[0].forward = forwards[number - 1]

    return calls(net, 7, before=before)


@case
def a_partial_function_gets_other_keywords_and_more_of_them() -> Work:
    scaled = functools.partial(lambda x, by, plus=1: x * by + plus, by=2)

    def before(number: int) -> None:
        if number == 2:
            scaled.keywords["by"] = 5
        if number == 3:
            scaled.keywords["plus"] = 7
        if number == 4:
            del scaled.keywords["plus"]

    return calls(lambda x: scaled(x) * 1, 6, before=before)


@case
def a_function_of_pytorch_is_replaced_under_its_name() -> Work:
    def before(number: int) -> None:
        globals()["relu"] = (lambda x: x * 100) if number == 2 else functional.relu

    return calls(lambda x: relu(x - 1), before=before)


def patched(owner: Any, name: str, other: Any) -> Callable[[int], None]:
    """Another thing under a name of a library at the third call, and what was there at all others."""
    usual = vars(owner).get(name)

    def before(number: int) -> None:
        if number == 2:
            setattr(owner, name, other)
        elif usual is not None:
            setattr(owner, name, usual)
        elif name in vars(owner):
            delattr(owner, name)

    return before


@case
def a_function_of_functional_is_replaced_by_one_that_reads_a_list() -> Work:
    factors = [3.0]

    def mine(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return x * factors[0]

    replace = patched(functional, "relu", mine)

    def before(number: int) -> None:
        replace(2 if number in (2, 3, 4) else 0)
        factors[0] = 5.0 if number == 3 else 3.0

    return calls(lambda x: functional.relu(x - 1), 7, before=before)


@case
def a_function_that_a_layer_of_pytorch_calls_is_replaced() -> Work:
    return calls(square(), before=patched(functional, "relu", lambda x, inplace=False: x * 100))


@case
def a_function_of_torch_is_replaced() -> Work:
    return calls(lambda x: torch.sin(x) + 1, before=patched(torch, "sin", torch.cos))


@case
def a_method_of_tensors_is_replaced() -> Work:
    return calls(lambda x: x.abs() * 2, before=patched(torch.Tensor, "abs", lambda x: x - 7))


@case
def a_number_of_a_module_of_python_is_replaced() -> Work:
    return calls(lambda x: x * math.tau, before=patched(math, "tau", 2.0))


@case
def a_function_in_a_module_inside_of_torch_is_replaced() -> Work:
    return calls(lambda x: torch.special.expit(x) + 1, before=patched(torch.special, "expit", torch.exp))


@case
def a_layer_that_code_makes_is_another_one() -> Work:
    return calls(lambda x: nn.ReLU()(x - 1), before=patched(nn, "ReLU", nn.Tanh))


@case
def a_context_variable_is_counted() -> Work:
    level, seen = contextvars.ContextVar("level", default=1), []

    def run(x: torch.Tensor) -> torch.Tensor:
        now = level.get()
        level.set(now + 1)
        return x * now

    return calls(run, watched=[seen], before=lambda _: seen.append(level.get()))


@case
def a_context_variable_that_held_nothing_is_set() -> Work:
    level: contextvars.ContextVar[int] = contextvars.ContextVar("level")

    def run(x: torch.Tensor) -> torch.Tensor:
        try:
            now = level.get()
        except LookupError:
            now = 7
        level.set(now + 1)
        return x * now

    return calls(run)


@case
def a_generators_state_is_put_back() -> Work:
    def run(x: torch.Tensor) -> torch.Tensor:
        state = random.getstate()
        first = random.random()
        random.setstate(state)
        return x * first - random.random()

    return calls(run)


@case
def the_state_of_numpys_generator_is_put_back() -> Work:
    def run(x: torch.Tensor) -> torch.Tensor:
        state = np.random.get_state()
        first = np.random.rand()
        np.random.set_state(state)
        return x * first - np.random.rand()

    return calls(run)


@case
def the_seed_is_asked_for() -> Work:
    return calls(lambda x: x * (torch.initial_seed() % 7))


@case
def the_seed_of_a_generator_is_asked_for() -> Work:
    return calls(lambda x: x * (torch.default_generator.initial_seed() % 7))


@case
def a_list_grows_in_forward_and_backward_and_is_looked_at() -> Work:
    seen: list[str] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append("forward")
            ctx.calls = len(seen)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append("backward")
            return gradient * ctx.calls

    weight = nn.Parameter(torch.ones(4))
    return calls(lambda x: Double.apply(x * weight), watched=[weight, seen], backward=True)


@case
def the_gradient_is_taken_away_inside() -> Work:
    weight = nn.Parameter(torch.ones(4))

    def run(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        return x * weight

    return calls(run, watched=[weight], backward=True)


@case
def an_intermediate_gradient_is_kept() -> Work:
    weight, kept = nn.Parameter(torch.ones(4)), []

    def run(x: torch.Tensor) -> torch.Tensor:
        inner = x * weight
        inner.retain_grad()
        kept.append(inner)
        return inner.sin()

    return calls(run, watched=[weight, kept], backward=True)


@case
def a_descriptor_counts_how_often_it_is_read() -> Work:
    class Counting:
        def __init__(self) -> None:
            self.reads = 0

        def __get__(self, thing: Any, kind: type | None = None) -> int:
            self.reads += 1
            return self.reads

    class Holder:
        reads = Counting()

    holder = Holder()
    return calls(lambda x: x * holder.reads, watched=[vars(Holder)["reads"]])


@case
def a_property_notes_reads_and_writes() -> Work:
    log: list[Any] = []

    class Holder:
        _size = 1

        @property
        def size(self) -> int:
            log.append("read")
            return self._size

        @size.setter
        def size(self, size: int) -> None:
            log.append(size)
            self._size = size

    holder = Holder()

    def run(x: torch.Tensor) -> torch.Tensor:
        holder.size *= 2
        return x + holder.size

    return calls(run, watched=[holder, log])


@case
def attributes_are_kept_elsewhere() -> Work:
    class Elsewhere:
        def __init__(self) -> None:
            object.__setattr__(self, "held", {})

        def __setattr__(self, name: str, value: Any) -> None:
            self.held[name] = value

        def __getattr__(self, name: str) -> Any:
            return vars(self)["held"][name]

    thing = Elsewhere()

    def run(x: torch.Tensor) -> torch.Tensor:
        thing.hidden = x * 2
        return thing.hidden + 1

    return calls(run, watched=[thing])


@case
def an_attribute_of_the_class_is_hidden_by_one_of_the_instance() -> Work:
    class Counting:
        hits = 0

        def run(self, x: torch.Tensor) -> torch.Tensor:
            self.hits += 1
            return x * self.hits

    one, other = Counting(), Counting()

    def before(number: int) -> None:
        if number == 2:
            Counting.hits = 10
        if number == 3:
            del one.hits

    return calls(lambda x: one.run(x) + other.run(x) + Counting.hits, 5, watched=[one, other], before=before)


@case
def a_context_manager_swallows_an_exception() -> Work:
    class Swallowing:
        caught = 0

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> bool:
            self.caught += 1
            return True

    manager = Swallowing()

    def run(x: torch.Tensor) -> torch.Tensor:
        with manager:
            x = x * 2
            raise ValueError("no")
        return x + manager.caught

    return calls(run, watched=[manager])


@case
def callbacks_run_at_the_end_of_a_block() -> Work:
    log: list[Any] = []

    def run(x: torch.Tensor) -> torch.Tensor:
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, x)
            stack.callback(lambda: log.append(len(log)))
            return x * 2

    return calls(run, watched=[log])


@case
def a_generator_is_sent_numbers() -> Work:
    def counting() -> Any:
        number = 0
        while True:
            number += (yield number) or 1

    numbers = counting()
    next(numbers)
    return calls(lambda x: x + numbers.send(2))


@case
def a_cached_property_is_forgotten() -> Work:
    class Counting:
        made = 0

        @functools.cached_property
        def number(self) -> int:
            Counting.made += 1
            return Counting.made

    counting = Counting()

    def before(number: int) -> None:
        if number == 2:
            vars(counting).pop("number", None)

    return calls(lambda x: x * counting.number, watched=[counting, Counting], before=before)


@case
def a_dataclass_is_given_and_changed() -> Work:
    @dataclasses.dataclass
    class State:
        steps: int = 0
        hidden: Any = None

    def run(x: torch.Tensor, state: State) -> State:
        state.steps += 1
        state.hidden = x + state.steps
        return state

    state = State()
    return Work(run, [((row(), state), {})] * 4)


@case
def a_default_that_can_change_grows() -> Work:
    def run(x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006 - what is looked at
        seen.append(1)
        return x * len(seen)

    return calls(run, watched=[run.__defaults__])


@case
def a_function_gets_other_code_and_defaults() -> Work:
    def scaled(x: torch.Tensor, by: int = 2) -> torch.Tensor:
        return x * by

    def shifted(x: torch.Tensor, by: int = 2) -> torch.Tensor:
        return x + by

    def before(number: int) -> None:
        scaled.__defaults__ = (number,)
        if number == 2:
            scaled.__code__ = shifted.__code__

    return calls(lambda x: scaled(x) * 1, before=before)


@case
def attributes_of_a_thread_are_counted() -> Work:
    local, seen = threading.local(), []
    local.number = 0

    def run(x: torch.Tensor) -> torch.Tensor:
        local.number += 1
        local.hidden = x
        return x * local.number

    return calls(run, watched=[seen], before=lambda _: seen.append((local.number, getattr(local, "hidden", None))))


@case
def an_ordered_dictionary_is_turned() -> Work:
    turning = collections.OrderedDict(a=1, b=2, c=3)

    def run(x: torch.Tensor) -> torch.Tensor:
        turning.move_to_end(next(iter(turning)))
        return x * next(iter(turning.values()))

    return calls(run, 5, watched=[turning])


@case
def a_failure_comes_after_writes() -> Work:
    counts, total = {"calls": 0}, torch.zeros(4)

    def run(x: torch.Tensor) -> torch.Tensor:
        counts["calls"] += 1
        total.add_(x)
        if counts["calls"] == 3:
            raise ValueError("the third")
        return total * 1

    return calls(run, 5, watched=[counts, total])


@case
def numpys_view_of_a_buffer_is_written() -> Work:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("number", torch.ones(4))
            self.view = self.number.numpy()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.number + float(self.view[0])

    net = Viewed()
    return calls(net, before=net.view.fill)


@case
def an_ordered_dictionary_is_ordered_anew() -> Work:
    factors = collections.OrderedDict(first=2.0, second=3.0, third=5.0)

    def run(x: torch.Tensor) -> torch.Tensor:
        for name, factor in factors.items():
            x = x * factor + len(name)
        return x

    return calls(run, 5, before=lambda number: factors.move_to_end("second", last=number < 3))


@case
def hooks_and_layers_are_ordered_anew() -> Work:
    net = square()
    first = net[0].register_forward_hook(lambda _, __, y: y * 2)
    net[0].register_forward_hook(lambda _, __, y: y + 1)

    def before(number: int) -> None:
        if number == 2:
            net[0]._forward_hooks.move_to_end(first.id)
        if number == 4:
            net._modules["0"] = net._modules.pop("0")

    return calls(net, 6, before=before)


@case
def numbers_among_arguments_are_copied() -> Work:
    def run(given: dict[str, Any]) -> tuple[torch.Tensor, Any]:
        own = copy.deepcopy(given)
        own["x"] += 1
        return own["x"] + given["x"], own

    return Work(run, [(({"x": row(), "n": [1, number]},), {}) for number in range(5)])


@case
def numbers_of_numpy_are_of_their_own_classes() -> Work:
    kinds = (np.float64, float, np.float32, np.int64, int, np.float64)
    numbers = [kind(number) for kind in kinds for number in (2, 3)]
    return Work(lambda x, n: x * float(n) * len(type(n).__name__), [((row(), number), {}) for number in numbers])


@case
def a_module_gives_names_that_it_does_not_have() -> Work:
    settings, known = types.ModuleType("settings"), {"scale": 2.0}
    settings.__getattr__ = lambda name: known[name]  # type: ignore[method-assign]
    return calls(lambda x: x * settings.scale, before=lambda number: known.update(scale=number // 2 + 2.0))


@case
def a_protocol_asks_for_attributes() -> Work:
    @runtime_checkable
    class Scaling(Protocol):
        scale: float

    class Plain:
        pass

    thing = Plain()

    def before(number: int) -> None:
        if number == 1:
            thing.scale = 3.0  # type: ignore[attr-defined]
        if number == 3:
            del thing.scale  # type: ignore[attr-defined]

    return calls(lambda x: x * 2 if isinstance(thing, Scaling) else x * 3, 5, before=before)


@case
def an_abstract_class_gets_to_know_another_one() -> Work:
    class Abstract(abc.ABC):  # noqa: B024
        pass

    class Plain:
        pass

    thing = Plain()

    def before(number: int) -> None:
        if number:
            Abstract.register(Plain if number == 2 else type("Other", (), {}))

    return calls(lambda x: x * 2 if isinstance(thing, Abstract) else x * 3, before=before)


@case
def views_of_a_dictionary_are_kept() -> Work:
    factors = {"first": 2.0}
    values, items = factors.values(), factors.items()

    def before(number: int) -> None:
        factors["first" if number % 2 else "other"] = float(number)

    return calls(lambda x: x * sum(values) + len(items), 5, before=before)


class Registering(nn.Module):
    """Makes, changes or takes away what a module consists of, as it runs."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.first, self.second, self.count = nn.Linear(4, 4), nn.Linear(4, 4), 0
        self.scale, self.other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4) * 2)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self)
        y = self.second(torch.relu(self.first(x))) * self.scale
        return self.third(y) if hasattr(self, "third") else y


def makes_a_layer(net: Any) -> None:
    if not hasattr(net, "third"):
        torch.manual_seed(1)
        net.third = nn.Linear(4, 3)


def takes_a_layer_away(net: Any) -> None:
    net.third = nn.Tanh()
    del net.third


def swaps_layers(net: Any) -> None:
    net.first, net.second = net.second, net.first


def swaps_parameters(net: Any) -> None:
    net.scale, net.other = net.other, net.scale


def takes_a_parameter_away(net: Any) -> None:
    net.first.bias = None


def adds_a_hook_once(net: Any) -> None:
    if not net.count:
        net.first.register_forward_hook(lambda _, __, y: y * 2)
        net.count = 1


CHANGES = (
    makes_a_layer, takes_a_layer_away, swaps_layers, swaps_parameters, takes_a_parameter_away, adds_a_hook_once,
)  # fmt: skip


@pytest.mark.parametrize(
    "kept", [list[Any](), dict[str, Any](), types.SimpleNamespace()], ids=["list", "dict", "object"]
)
def test_layers_that_code_makes_at_its_first_call_are_real_ones(kept: Any) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        if isinstance(kept, list):
            if not kept:
                kept.append(nn.Linear(4, 2))
            return kept[0](x)
        known = kept if isinstance(kept, dict) else vars(kept)
        if "layer" not in known:
            known["layer"] = nn.Linear(4, 2)
        return known["layer"](x)

    with overrides(whole="off"):
        hybrid = weft.hybridize(run)
        found = [hybrid(torch.ones(1, 4)) for _ in range(4)]
    torch.testing.assert_close(found, [run(torch.ones(1, 4))] * 4)
    assert hybrid.traces == 1


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_a_module_consists_of_changes_as_it_runs(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    plain = Registering(change)
    ours = copy.deepcopy(plain)
    with overrides(whole="off"):
        hybrid = weft.hybridize(ours)
    for turn in range(5):
        x, found = torch.randn(2, 4), []
        for net in (plain, hybrid):
            torch.manual_seed(turn)
            with overrides(whole="off"):
                y = net(x)
            y.sum().backward()
            found.append([y, {name: each.grad for name, each in net.named_parameters()}, len(list(net.modules()))])
        torch.testing.assert_close(*found)
    if change is makes_a_layer:
        assert hybrid.forward.traces == 1


@pytest.mark.parametrize("name", CASES)
def test_ordinary_python_does_what_it_does_in_eager(name: str) -> None:
    ways = ["hybridize", "lazy"] if name in NOT_STEPS else ["hybridize", "lazy", "step"]
    with overrides(whole="off"):
        assert_every_way(CASES[name], *ways)


def autocast_to(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype("cpu", dtype)


def in_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return x[None] @ x[:, None]


def argued(arguments: list[str]) -> None:
    sys.argv[1:] = arguments


def filling(fills: bool) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = fills


def collecting(collects: bool) -> None:
    (gc.enable if collects else gc.disable)()


# What is set, to what first and to what then, and what asks for it.
SETTINGS: dict[str, tuple[Callable[[Any], Any], Any, Any, Callable[[torch.Tensor], torch.Tensor]]] = {
    "the dtype of autocast": (autocast_to, torch.bfloat16, torch.float16, in_autocast),
    "the dtype of autocast, asked for": (
        autocast_to,
        torch.bfloat16,
        torch.float16,
        lambda x: x.to(torch.get_autocast_dtype("cpu")),
    ),
    "arguments of the command": (argued, ["one"], ["one", "two"], lambda x: x * len(sys.argv)),
    "errors of NumPy": (
        lambda divide: np.seterr(divide=divide),
        "warn",
        "ignore",
        lambda x: x * (np.geterr()["divide"] == "warn"),
    ),
    "kernels of attention": (
        torch.backends.cuda.enable_flash_sdp,
        True,
        False,
        lambda x: x * torch.backends.cuda.flash_sdp_enabled(),
    ),
    "memory that is filled": (
        filling,
        True,
        False,
        lambda x: x * torch.utils.deterministic.fill_uninitialized_memory,
    ),
    "the limit of recursion": (sys.setrecursionlimit, 1000, 2000, lambda x: x * (sys.getrecursionlimit() > 1500)),
    "the collector of garbage": (collecting, True, False, lambda x: x * gc.isenabled()),
    "the folder": (os.chdir, "/", Path.home(), lambda x: x * len(str(Path.cwd()))),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_code_asks_for_may_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put, first, then, ask = SETTINGS[name]
    folder, limit = Path.cwd(), sys.getrecursionlimit()
    monkeypatch.setattr(sys, "argv", [*sys.argv[:1]])
    with overrides(whole="off"):
        hybrid = weft.hybridize(ask)
    try:
        for value in (first, first, then, first):
            put(value)
            with overrides(whole="off"):
                found, expected = hybrid(row() + 1), ask(row() + 1)
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected), f"{value}"
    finally:
        put(first)
        os.chdir(folder)
        sys.setrecursionlimit(limit)


def test_a_file_that_code_asks_for_may_come(tmp_path: Path) -> None:
    path = tmp_path / "flag"
    with overrides(whole="off"):
        hybrid = weft.hybridize(lambda x: x * path.exists())
        for _ in range(2):
            assert torch.equal(hybrid(row()), torch.zeros(4))
        path.touch()
        assert torch.equal(hybrid(row()), row())


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_weights_that_a_block_keeps_are_those_of_eager(kind: str) -> None:
    made = getattr(parametrizations, kind)(nn.Linear(4, 4))
    plain, x = copy.deepcopy(made), torch.randn(2, 4)
    with overrides(whole="off"):
        hybrid = weft.hybridize(made)
        for turn in range(6):
            found = []
            for net in (plain, hybrid):
                with parametrize.cached() if turn % 3 else contextlib.nullcontext():
                    first = net(x)
                    (first + net(x)).sum().backward()
                found.append([first, net(x), *[each.grad for each in net.parameters()]])
            torch.testing.assert_close(found[1], found[0])
