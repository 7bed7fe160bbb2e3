"""Masks and tables that code keeps for later calls, in dictionaries, names and caches of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import weft

masks: dict[int, torch.Tensor] = {}
table: torch.Tensor | None = None


@functools.lru_cache(maxsize=8)
def remembered(size: int) -> torch.Tensor:
    return torch.arange(size) * 2.0


def from_dictionary(x: torch.Tensor) -> torch.Tensor:
    if len(x) not in masks:
        masks[len(x)] = torch.ones(len(x), len(x)).tril()
    return masks[len(x)] @ x


def from_global(x: torch.Tensor) -> torch.Tensor:
    global table  # noqa: PLW0603
    if table is None:
        table = torch.arange(3.0)
    return x + table


def from_closure() -> Any:
    kept = None

    def function(x: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        if kept is None:
            kept = torch.arange(3.0)
        return x + kept

    return function


class Tables(nn.Module):
    known: ClassVar[dict[int, torch.Tensor]] = {}

    @staticmethod
    @functools.cache
    def row(size: int) -> torch.Tensor:
        return torch.arange(size) * 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = len(x)
        if size not in self.known:
            self.known[size] = torch.full((size,), 3.0)
        return x * self.known[size] + self.row(size) + remembered(size)


class Attributes(dict[str, Any]):
    """Those of a class, which has to know of each change."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def keys(self) -> Any:
        return vars(self.kind).keys()

    def __getitem__(self, name: str) -> Any:
        return vars(self.kind)[name]

    def update(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.kind, name, value)

    def pop(self, name: str) -> None:
        delattr(self.kind, name)


@pytest.fixture(autouse=True)
def _nothing_kept():
    def clear() -> None:
        global table  # noqa: PLW0603
        masks.clear()
        Tables.known.clear()
        Tables.row.cache_clear()
        remembered.cache_clear()
        table = None

    clear()
    yield
    clear()


def test_a_mask_that_is_kept_in_a_dictionary_is_a_real_one() -> None:
    function, x = weft.hybridize(from_dictionary), torch.randn(4, 2)
    found = [function(x) for _ in range(3)]
    assert torch.equal(masks[4], torch.ones(4, 4).tril())
    assert all(torch.allclose(one, from_dictionary(x)) for one in found)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table["k"].add_(1),
        lambda table: table.update(k=torch.ones(3) * 7),
        lambda table: table.update(k=5.0),
        lambda table: table.pop("k"),
    ],
    ids=["written", "replaced", "a number", "gone"],
)
@pytest.mark.parametrize("kind", ["dictionary", "attributes", "class"])
def test_what_is_kept_may_be_changed_later(change: Callable[[Any], None], kind: str) -> None:
    def made() -> tuple[Callable[[torch.Tensor], torch.Tensor], dict[str, Any]]:
        holder: Any = type("Holder", (), {}) if kind == "class" else SimpleNamespace()
        table = {} if kind == "dictionary" else Attributes(holder) if kind == "class" else vars(holder)

        def by_name(x: torch.Tensor) -> torch.Tensor:
            if not hasattr(holder, "k"):
                holder.k = torch.arange(3.0)
            return x + holder.k

        def by_key(x: torch.Tensor) -> torch.Tensor:
            if "k" not in table:
                table["k"] = torch.arange(3.0)
            return x + table["k"]

        return (by_key if kind == "dictionary" else by_name), table

    (plain, first), (ours, second) = made(), made()
    hybrid = weft.hybridize(ours)
    for turn in range(5):
        assert torch.equal(hybrid(torch.ones(3)), plain(torch.ones(3)))
        assert first.keys() == second.keys()
        if turn in (0, 2):
            change(first)
            change(second)


def test_programs_settle_once_the_dictionary_holds_every_size() -> None:
    function = weft.hybridize(from_dictionary)
    for size in (3, 4, 5) * 3:
        function(torch.ones(size, 2))
    traces = function.traces
    for size in (3, 4, 5) * 3:
        function(torch.ones(size, 2))
    assert function.traces == traces


def test_a_table_in_a_global_or_closed_over_name_is_a_real_one() -> None:
    for function in (weft.hybridize(from_global), weft.hybridize(from_closure())):
        for _ in range(3):
            assert torch.equal(function(torch.ones(3)), torch.arange(3.0) + 1)
    assert torch.equal(table, torch.arange(3.0))


def test_caches_of_functions_and_classes_hold_real_tensors_after_a_trace() -> None:
    net, x = weft.hybridize(Tables()), torch.ones(3)
    expected = torch.tensor([3.0, 6.0, 9.0])
    assert torch.equal(net(x), expected)
    assert torch.equal(remembered(3), torch.tensor([0.0, 2.0, 4.0]))
    assert torch.equal(Tables.row(3), torch.tensor([0.0, 1.0, 2.0]))
    assert torch.equal(Tables.known[3], torch.full((3,), 3.0))
    weft.hybridize(net, False)
    assert torch.equal(net(x), expected)


def test_what_depends_on_an_argument_or_on_chance_is_kept_at_each_call() -> None:
    def keeps_input(x: torch.Tensor) -> torch.Tensor:
        masks[0] = x * 2
        return x

    def keeps_chance(x: torch.Tensor) -> torch.Tensor:
        masks[0] = torch.rand(2)
        return x

    for function in (keeps_input, keeps_chance):
        hybrid = weft.hybridize(function)
        found = []
        for number in range(4):
            hybrid(torch.full((2,), float(number)))
            found.append(masks[0])
        assert len({tuple(one.tolist()) for one in found}) == 4


class Settings:
    scale = 2.0
    offset = torch.ones(2)
    options: ClassVar[dict[str, float]] = {"bias": 1.0}

    @staticmethod
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + Other.shift


class Other:
    shift = 4.0


class Scaled(nn.Module):
    factor = 3.0
    last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Settings.shifted(x * Settings.scale * self.factor + Settings.offset + Settings.options["bias"])


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Settings, "scale", 5.0),
        (Settings, "offset", torch.zeros(2)),
        (Settings, "options", {"bias": 9.0}),
        (Scaled, "factor", 7.0),
        (Other, "shift", -1.0),
    ],
)
def test_a_changed_attribute_of_a_class_is_seen(monkeypatch, owner: type, name: str, value: object) -> None:
    net, x = weft.hybridize(Scaled()), torch.ones(2)
    for _ in range(3):
        before = net(x)
    assert torch.equal(before, Scaled.forward(net, x))
    monkeypatch.setattr(owner, name, value)
    found = net(x)
    assert torch.equal(found, Scaled.forward(net, x))
    assert not torch.equal(found, before)


def test_an_item_in_a_dictionary_of_a_class_is_seen(monkeypatch) -> None:
    net, x = weft.hybridize(Scaled()), torch.ones(2)
    net(x)
    monkeypatch.setitem(Settings.options, "bias", 100.0)
    assert torch.equal(net(x), Scaled.forward(net, x))


def test_a_result_kept_in_an_attribute_of_a_class_is_refused_and_the_class_is_as_before() -> None:
    class Keeps(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Scaled.last = x * 2
            return x

    with pytest.raises(weft.UnsupportedError, match=r"keeps a tensor .*Scaled\.last"):
        weft.hybridize(Keeps())(torch.ones(2))
    assert Scaled.last is None
    assert Keeps().last is None


class Last:
    """Somewhere to keep what was computed last."""

    pair: Any = None


seen: set[torch.Tensor] = set()


def keeps_in_set(x: torch.Tensor) -> torch.Tensor:
    seen.add(x * 2)
    return x + 1


def keeps_in_class(x: torch.Tensor) -> torch.Tensor:
    Last.pair = (x, x * 2)
    return x + 1


KEEPING = [keeps_in_set, keeps_in_class]


@pytest.mark.parametrize("function", KEEPING, ids=[function.__name__ for function in KEEPING])
def test_tensors_inside_of_what_is_kept_are_refused_and_taken_back(function: Any) -> None:
    with pytest.raises(weft.UnsupportedError, match="keeps a tensor that it computed"):
        weft.hybridize(function)(torch.ones(2))
    assert (seen, Last.pair) == (set(), None)
