"""Paths of a signature share one native entry, which walks from segment to segment as values say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.api import rare_calls
from weft.api.hybridize import hybrid_of
from weft.api.next_paths import NextPaths
from weft.api.pace import Pace
from weft.api.rare_calls import RareCalls
from weft.config import overrides
from weft.guards.entry import MISSED
from weft.guards.paths_entry import PathsEntry


@pytest.fixture(autouse=True)
def programs_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Values decide, and the clock gives no call to Python."""
    monkeypatch.setattr(Pace, "is_for_python", lambda self: False)
    monkeypatch.setattr(NextPaths, "is_steady", lambda self, found: True)
    monkeypatch.setattr(rare_calls, "QUICK", float("inf"))  # however long this machine takes to make a path
    with overrides(whole="off"):
        yield


def entry_of(ours: Any) -> PathsEntry:
    """The entry that all paths of a function share."""
    hybrid = hybrid_of(ours)
    [paths] = hybrid.programs.values()
    found = paths[-1].paths.entry
    assert isinstance(found, PathsEntry)
    assert found.is_bound
    return found


def calls(function: Any, seeds: range, *, grad: bool = False) -> list[Any]:
    """What a function gives for some random tensors."""
    results = []
    for seed in seeds:
        torch.manual_seed(seed)
        result = function(torch.randn(3, 4).requires_grad_(grad), torch.randn(3, 4).requires_grad_(grad))
        results.append(result.detach() if isinstance(result, Tensor) else result)
    return results


def halved(x: Tensor, y: Tensor) -> Tensor:
    while x.norm() > 2:
        x = x * 0.5
    return x + y


def by_number(x: Tensor, y: Tensor) -> Any:
    count = int((x > 0).sum())
    if count % 3 == 0:
        return y * count, count
    if count // 2 > 2 and count != 7:
        return y / (count + 1), count * 2
    return y - (2 * count - 1), -count


def by_fraction(x: Tensor, y: Tensor) -> Any:
    mean = x.mean().item()
    return y * mean if mean > 0.1 else y - mean / 4


def by_list(x: Tensor, y: Tensor) -> Tensor:
    first, second = (x[0, :2] > 0).tolist()
    return y * (2 if first else 3) + (1 if second else 0)


def by_flag(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if torch.equal(x[0] > 0, y[0] > 0) else y.t()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [halved, by_number, by_fraction, by_list, by_flag], ids=lambda one: one.__name__)
def test_native_code_goes_the_way_that_values_say(function: Any, *, grad: bool) -> None:
    ours = weft.hybridize(function)
    seeds = range(24)
    for _ in range(3):
        mine, theirs = calls(ours, seeds, grad=grad), calls(function, seeds, grad=grad)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other)
    assert sum(entry_of(ours).tree.counts()) > 0  # type: ignore[union-attr]


def test_how_often_each_way_was_taken_is_told() -> None:
    ours = weft.hybridize(halved)
    for _ in range(12):
        ours(torch.ones(3, 4), torch.ones(3, 4))
    [found] = [line for line in str(weft.explain(ours)).splitlines() if "by native code" in line]
    assert found.strip() in {f"taken {count} times by native code" for count in range(6, 12)}


def test_calls_that_were_seen_need_no_python() -> None:
    ours = weft.hybridize(halved)
    calls(ours, range(30))
    entry = entry_of(ours)
    entry.bind()
    left: list[Any] = []
    entry._run = lambda *given: left.append(given)  # type: ignore[method-assign]
    calls(ours, range(30))
    assert not left


def by_nest(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.tanh(x * 2) if y.sum() > 0 else torch.sigmoid(x * 3)
    return y.exp() if y[0, 0] > 0 else x + y


def test_ways_that_come_one_after_the_other_are_all_native_soon() -> None:
    ours = weft.hybridize(by_nest)
    for _ in range(6):  # of which each first one leaves the entry that was made for fewer ways
        calls(ours, range(16))
    entry = entry_of(ours)
    before = entry.tree.counts()  # type: ignore[union-attr]
    calls(ours, range(16))
    assert sum(entry.tree.counts()) - sum(before) == 16  # type: ignore[union-attr]
    assert len(before) == 4


def by_rounds(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(40):
        x = x + 1
        if x[0, 0] > y[0, 0]:
            break
    return x


def test_loops_of_many_lengths_stay_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RareCalls, "deserves_path", lambda *_: True)
    ours = weft.hybridize(by_rounds)
    x = torch.zeros(3, 4)
    for _ in range(4):
        for rounds in range(30):
            assert ours(x, x + rounds + 0.5)[0, 0].item() == rounds + 1
    assert len(entry_of(ours).paths) == 30


def test_calls_that_ever_other_ways_would_be_for_run_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.api.next_paths.MOST_PATHS", 2)
    monkeypatch.setattr("weft.api.hybrid.MOST_PATHS", 2)
    monkeypatch.setattr("weft.api.next_paths.MOST_STRAYS", 6)
    ours, x = weft.hybridize(by_rounds), torch.zeros(3, 4)
    for _ in range(12):  # most calls go ways that have a path
        for rounds in (1, 1, 1, 2, 2, 3):
            assert ours(x, x + rounds + 0.5)[0, 0].item() == rounds + 1
    hybrid = hybrid_of(ours)
    [key] = hybrid.programs
    assert hybrid.refused.error(key) is None
    for rounds in range(4, 39):
        for _ in range(3):
            assert ours(x, x + rounds + 0.5)[0, 0].item() == rounds + 1
    assert "ever other ways" in str(hybrid.refused.error(key))


def test_a_way_that_is_not_known_is_left_to_python() -> None:
    ours = weft.hybridize(halved)
    for _ in range(8):
        ours(torch.ones(3, 4) * 0.1, torch.ones(3, 4))
    entry = entry_of(ours)
    large = torch.ones(3, 4) * 1e6
    torch.testing.assert_close(ours(large, large), halved(large, large))
    assert entry.entry(large[0], large) is MISSED


def test_weights_that_change_are_seen_in_every_segment() -> None:
    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
                if x.mean() > 0.2:
                    break
            return x + y

    net = Deep().eval()
    plain = Deep().eval()
    plain.load_state_dict(net.state_dict())
    weft.hybridize(net)
    with torch.no_grad():
        for change in range(6):
            for _ in range(3):
                for one, other in zip(calls(net, range(12)), calls(plain, range(12)), strict=True):
                    torch.testing.assert_close(one, other)
            for module in (net, plain):
                torch.manual_seed(change)
                layer = module.layers[change % 3]
                layer.weight.add_(torch.randn(4, 4))
                if change == 3:
                    layer.bias = torch.nn.Parameter(torch.ones(4))


def test_gradients_follow_the_way_that_was_taken() -> None:
    def steep(x: Tensor, y: Tensor) -> Tensor:
        total = (x * y).sum()
        if total > 1:
            return (total * x).sum()
        return total.square() if total < -1 else (x + y.detach()).sum()

    ours = weft.hybridize(steep)
    for seed in (*range(24), *range(24)):
        found = []
        for function in (steep, ours):
            torch.manual_seed(seed)
            x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
            function(x * 1, y * 1).backward()
            found.append((x.grad, y.grad if y.grad is not None else torch.zeros(3, 4)))
        torch.testing.assert_close(*found)


def test_numbers_that_only_some_ways_compute_are_computed_for_these() -> None:
    def scaled(x: Tensor, y: Tensor) -> Any:
        count = int((x > 0).sum())
        if y[0, 0] > 0.5:
            return x.clamp(-8, count % 5)
        if y[0, 1] > 0:
            return x * (count // 2 - 4)
        return x, count

    ours = weft.hybridize(scaled)
    for _ in range(3):
        for one, other in zip(calls(ours, range(24)), calls(scaled, range(24)), strict=True):
            torch.testing.assert_close(one, other)
    assert sum(entry_of(ours).tree.counts()) > 24  # type: ignore[union-attr]
