"""From a module or function, the tensors and facts that its code can reach are found."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import torch
from torch import nn

import weft
from weft.trace.python_state.containers import OfFunction
from weft.trace.python_state.reachable import find_state

TABLE = torch.ones(2)
RATE = 0.5


def uses_globals(x: torch.Tensor) -> torch.Tensor:
    return x * TABLE * RATE


def paths(*roots: Any) -> set[str]:
    return {slot.path for slot in find_state(*roots).slots.values()}


def names(*roots: Any) -> set[str]:
    """What is compared, beside what functions are made of."""
    facts = find_state(*roots).names.values()
    return {fact.path for fact in facts if not isinstance(fact.container, OfFunction)}


def test_parameters_and_buffers_are_found_under_their_names() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    found = paths(net)
    assert {"0.weight", "0.bias", "1.running_mean", "1.num_batches_tracked"} <= found


def test_a_tied_parameter_is_one_slot() -> None:
    net = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)})
    net["second"].weight = net["first"].weight
    assert "second.weight" not in paths(net)


def test_globals_closures_and_partial_arguments_are_found() -> None:
    shift, inner = torch.zeros(2), nn.Linear(2, 2)

    def function(x: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        return inner(uses_globals(x)) + shift + extra

    found = find_state(partial(function, extra=torch.ones(2)))
    assert {slot.path for slot in found.slots.values()} >= {"TABLE", "shift", "inner.weight"}
    assert {fact.path for fact in found.names.values()} >= {"RATE", "inner", "uses_globals"}


def test_names_of_libraries_are_left_out() -> None:
    assert "torch" not in names(uses_globals)


def test_attributes_of_plain_objects_count_only_if_the_code_mentions_them() -> None:
    class Options:
        pass

    options: Any = Options()
    options.scale, options.history = 1.0, []

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * options.scale

    assert names(function) >= {"options", "options.scale"}
    assert "options.history" not in names(function)


def test_methods_that_forward_calls_are_followed() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scaled(x)

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * RATE

        def unused(self, x: torch.Tensor) -> torch.Tensor:
            return x * TABLE

    state = find_state(Net())
    own = {
        fact.path
        for fact in state.names.values()
        if not isinstance(fact.container, OfFunction)
        if not fact.path.startswith(("global ", "is ", "what "))
    }
    assert own == {
        "RATE",
        "Net.scaled",
        "Net.forward",
        "which names Net has",
    }  # beside PyTorch's settings, which modules ask for
    assert state.slots == {}


def test_hybridized_functions_are_looked_into() -> None:
    hybrid = weft.hybridize(uses_globals)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return hybrid(x)

    assert "RATE" in names(outer)


def test_names_inside_imported_modules_of_the_user_are_found() -> None:
    settings = types.ModuleType("settings_of_a_user")
    settings.scale = 3.0  # type: ignore[attr-defined]
    function = types.FunctionType(
        compile("lambda x: x * settings.scale", "f", "eval").co_consts[0], {"settings": settings}
    )
    assert names(function) == {"settings", "settings.scale"}


def test_generators_are_collected() -> None:
    generator = torch.Generator()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(2, generator=generator) + x

    assert find_state(function).generators == [generator]


def test_a_slot_gives_what_is_there_now() -> None:
    net = nn.Linear(2, 2)
    slot = find_state(net).slot(net.weight)
    net.weight = nn.Parameter(torch.zeros(2, 2))
    assert slot.get() is net.weight
    assert find_state(net).may_write(net.weight)
    assert find_state(uses_globals).may_write(TABLE)
    assert not find_state(uses_globals).may_write(torch.ones(1))


def test_cycles_end() -> None:
    net = nn.Module()
    net.itself = [net]
    box: Any = types.SimpleNamespace()
    box.box = box
    net.box = box
    assert find_state(net, box).modules == {net: ""}
