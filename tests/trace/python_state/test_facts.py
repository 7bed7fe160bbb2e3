"""What Python code may have looked at is compared strictly, and the difference is a sentence."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from torch import nn

from weft.trace.python_state.facts import content, module_facts, name_fact


@pytest.mark.parametrize("thing", [1, 1.5, "text", None, True, (1, [2.0]), {"a": {1, 2}}, torch.float32, math.nan, 1j])
def test_a_thing_is_the_same_as_itself(thing: Any) -> None:
    assert content(thing) == content(thing)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ([1], (1,)),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.ones(1), torch.ones(1)),
        ([object()], [object()]),
        (0j, -0j),
    ],
)
def test_things_that_code_could_tell_apart_are_different(first: Any, second: Any) -> None:
    assert content(first) != content(second)


def test_a_list_that_is_changed_in_place_is_noticed() -> None:
    names = {"scales": [1, 2]}
    fact = name_fact((names, "scales", "scales", names["scales"]))
    assert fact.change() is None
    names["scales"].append(3)
    assert fact.change() == "scales holds other things"


def test_a_name_that_is_gone_is_noticed() -> None:
    names: dict[str, Any] = {"scale": 2}
    fact = name_fact((names, "scale", "scale", 2))
    del names["scale"]
    assert fact.change() == "scale was 2, is missing"


def add_attribute(module: nn.Module) -> None:
    module.extra = 1


def remove_attribute(module: nn.Module) -> None:
    del module.in_features


def replace_forward(module: nn.Module) -> None:
    module.forward = lambda x: x


def rename(module: nn.Module) -> None:
    module.register_parameter("other", nn.Parameter(torch.ones(1)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (add_attribute, "layer.extra was missing, is 1"),
        (remove_attribute, "layer.in_features was 2, is missing"),
        (replace_forward, "layer.forward was missing, is <function>"),
        (rename, "layer.parameters holds other things"),
        (nn.Module.eval, "layer.training was True, is False"),
    ],
)
def test_changes_of_modules_are_named(change: Any, sentence: str) -> None:
    module = nn.Linear(2, 3)
    facts = module_facts(module, "layer")
    assert facts.change() is None
    change(module)
    assert facts.change() == sentence


def test_an_equal_value_is_no_change() -> None:
    module = nn.Linear(2, 3)
    module.rate = float("0.1")
    facts = module_facts(module, "")
    module.rate = float("0.1")
    assert facts.change() is None


def test_what_another_thread_fills_meanwhile_can_be_compared() -> None:
    counts: dict[int, int] = {}
    stop = threading.Event()

    def fill() -> None:
        while not stop.is_set():
            counts.clear()
            counts.update((number, number) for number in range(50))

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        for _ in range(2000):
            content(counts)
    finally:
        stop.set()
        thread.join()
