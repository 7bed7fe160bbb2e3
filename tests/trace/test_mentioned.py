"""Whatever Python value traced code has read is guarded, wherever it lives."""

from __future__ import annotations

import argparse
import types
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import weft


@dataclass(slots=True)
class Slots:
    scale: float = 2.0
    kept: Any = None


class Attributes(dict):
    """A dictionary whose items are attributes too, as many libraries for settings have it."""

    __getattr__ = dict.__getitem__


class Methods:
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Holder:
    def __init__(self, thing: Any) -> None:
        self.thing = thing


package, inner = types.ModuleType("settings"), types.ModuleType("settings.inner")
package.inner = inner
slotted, holder, attributes = Slots(), Holder(Slots()), Attributes(scale=2.0)
ordered, default, namespace = OrderedDict(scale=2.0), defaultdict(float, scale=2.0), argparse.Namespace(scale=2.0)
Pair = namedtuple("Pair", "scale options")  # noqa: PYI024
pair, methods = Pair(2.0, {"more": 2.0}), Methods()


def by_getattr(x: torch.Tensor) -> torch.Tensor:
    return x * getattr(namespace, "scale")  # noqa: B009


def by_method(x: torch.Tensor) -> torch.Tensor:
    return methods.scaled(x)


def doubled_method(self: Methods, x: torch.Tensor) -> torch.Tensor:
    return x * 4


CASES = {
    "an object with slots": (lambda x: x * slotted.scale, lambda: setattr(slotted, "scale", 4.0)),
    "an object in an object": (lambda x: x * holder.thing.scale, lambda: setattr(holder.thing, "scale", 4.0)),
    "a dictionary of attributes": (lambda x: x * attributes.scale, lambda: attributes.update(scale=4.0)),
    "an ordered dictionary": (lambda x: x * ordered["scale"], lambda: ordered.update(scale=4.0)),
    "a dictionary with a default": (lambda x: x * default["scale"], lambda: default.update(scale=4.0)),
    "what is in a named tuple": (lambda x: x * pair.options["more"], lambda: pair.options.update(more=4.0)),
    "a module in a module": (lambda x: x * package.inner.scale, lambda: setattr(inner, "scale", 4.0)),
    "an attribute by its name": (by_getattr, lambda: setattr(namespace, "scale", 4.0)),
    "a method of a class": (by_method, lambda: setattr(Methods, "scaled", doubled_method)),
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(Methods, "scaled", Methods.scaled)
    slotted.scale = holder.thing.scale = inner.scale = namespace.scale = 2.0
    slotted.kept = None
    for mapping in (attributes, ordered, default):
        mapping["scale"] = 2.0
    pair.options["more"] = 2.0


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    function, change = CASES[name]
    hybrid, x = weft.hybridize(function), torch.ones(2)
    for _ in range(3):
        assert torch.equal(hybrid(x), x * 2)
    assert hybrid.traces == 1
    change()
    for _ in range(3):
        assert torch.equal(hybrid(x), x * 4)
    assert hybrid.traces == 2


calls: list[int] = []
counts = {"runs": 0, "scale": 2.0}
runs = 0


def appends(x: torch.Tensor) -> torch.Tensor:
    calls.append(len(x))
    return x + 1


def counts_in_dictionary(x: torch.Tensor) -> torch.Tensor:
    counts["runs"] += 1
    return x * counts["scale"]


def counts_in_name(x: torch.Tensor) -> torch.Tensor:
    global runs  # noqa: PLW0603
    runs += 1
    return x + 1


@pytest.mark.parametrize("function", [appends, counts_in_dictionary, counts_in_name])
def test_what_code_itself_changes_as_it_is_traced_makes_no_further_programs(function) -> None:
    hybrid = weft.hybridize(function)
    for _ in range(3):
        for size in (2, 3, 4):
            hybrid(torch.ones(size))
    assert hybrid.traces == 3


def test_what_stands_beside_it_is_guarded_as_before(monkeypatch) -> None:
    hybrid, x = weft.hybridize(counts_in_dictionary), torch.ones(2)
    assert torch.equal(hybrid(x), x * 2)
    monkeypatch.setitem(counts, "scale", 4.0)
    assert torch.equal(hybrid(x), x * 4)


def test_a_result_left_in_an_object_with_slots_is_refused_and_taken_back() -> None:
    def keeps(x: torch.Tensor) -> torch.Tensor:
        slotted.kept = x * 2
        return x

    with pytest.raises(weft.UnsupportedError, match=r"keeps a tensor .*slotted\.kept"):
        weft.hybridize(keeps)(torch.ones(2))
    assert slotted.kept is None


def test_names_of_the_standard_library_are_not_looked_into() -> None:
    hybrid = weft.hybridize(lambda x: x * len(types.__name__))
    assert torch.equal(hybrid(torch.ones(1)), torch.full((1,), 5.0))
    (group,) = hybrid.programs.values()
    assert not [fact.path for fact in group[0]._facts if fact.path.startswith("types.")]
