"""A native entry leads calls of sizes in range to the program for them, whether they have come before or not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.api import rare_calls, sized_calls
from weft.api.hybrid import Hybrid
from weft.api.tops import next_top
from weft.api.varying import VaryingProgram
from weft.guards.likeness import CallItems, likeness_of

pytestmark = pytest.mark.usefixtures("by_library")


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture
def hybrid() -> Any:
    """A function with a program for 2 to 16 rows, of which 3, 5 and 7 have come."""
    found = weft.hybridize(doubled)
    with torch.no_grad():
        for rows in (3, 5, 7, 5):
            found(torch.randn(rows, 4))
    return found


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the calls that no entry took."""
    shapes: list[tuple[int, ...]] = []
    usual = Hybrid._call

    def call(self: Hybrid, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        shapes.append(tuple(arguments[0].shape))
        return usual(self, arguments, keywords)

    monkeypatch.setattr(Hybrid, "_call", call)
    return shapes


@torch.no_grad()
def test_sizes_that_have_come_are_run_by_the_entry(hybrid: Any, long_ways: list[tuple[int, ...]]) -> None:
    for rows in (5, 7, 5, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(hybrid(x), x * 2)
    assert long_ways == []


@torch.no_grad()
def test_sizes_that_are_new_are_run_by_the_entry_too(hybrid: Any, long_ways: list[tuple[int, ...]]) -> None:
    for rows in (9, 9, 9, 5, 2, 16, 15):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(hybrid(x), x * 2)
    assert long_ways == []


@torch.no_grad()
def test_sizes_go_to_the_smallest_program_that_takes_them(
    hybrid: Any, long_ways: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows in (300, 250, 280):  # a program for many more
        hybrid(torch.randn(rows, 4))
    small, large = (one for one in hybrid.varying)
    long_ways.clear()
    before = small.calls.count, large.calls.count
    for rows in (11, 13, 280, 12, 310):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(hybrid(x), x * 2)
    assert (small.calls.count, large.calls.count) == (before[0] + 3, before[1] + 2)
    monkeypatch.setattr(VaryingProgram, "is_too_large", lambda *_: True)  # what would be computed in vain is Python's
    long_ways.clear()
    x = torch.randn(210, 4)
    torch.testing.assert_close(hybrid(x), x * 2)
    assert long_ways == [(210, 4)]


@torch.no_grad()
def test_sizes_that_are_to_be_the_same_are_compared(long_ways: list[tuple[int, ...]]) -> None:
    hybrid = weft.hybridize(lambda x, y: (x * 2, y + 1))
    for rows in (3, 5, 7):
        hybrid(torch.randn(rows, 4), torch.randn(rows, 4))
    long_ways.clear()
    for rows, others in ((6, 6), (8, 8), (6, 11)):
        x, y = torch.randn(rows, 4), torch.randn(others, 4)
        torch.testing.assert_close(hybrid(x, y), (x * 2, y + 1))
    assert long_ways == [(6, 4)]


@torch.no_grad()
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(0, 4),
        torch.randn(1, 4),
        torch.randn(17, 4),
        torch.randn(5, 6),
        torch.randn(5, 4).double(),
        torch.randn(4, 5).T,
        torch.randn(10, 4)[::2],
        torch.randn(5, 8)[:, :4],
        torch.randn(5, 4, 1),
        torch.randn(5, 4).requires_grad_(),
    ],
    ids=lambda x: f"{list(x.shape)} {x.stride()} {x.dtype}",
)
def test_other_tensors_are_none_of_the_entry_s(hybrid: Any, long_ways: list[tuple[int, ...]], x: torch.Tensor) -> None:
    torch.testing.assert_close(hybrid(x), x * 2)
    assert len(long_ways) == 1


def test_gradients_are_none_of_the_entry_s(hybrid: Any, long_ways: list[tuple[int, ...]]) -> None:
    x = torch.randn(5, 4, requires_grad=True)
    hybrid(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5, 4), 2.0))
    assert len(long_ways) == 1


@torch.no_grad()
def test_weights_are_read_as_they_are() -> None:
    net = nn.Linear(4, 2)
    hybrid = weft.hybridize(net)
    for rows in (3, 5, 6, 5, 6, 5):
        net.weight.mul_(2)
        x = torch.randn(rows, 4)
        torch.testing.assert_close(hybrid(x), x @ net.weight.T + net.bias)
    net.weight = nn.Parameter(torch.randn(2, 4))
    torch.testing.assert_close(hybrid(x), x @ net.weight.T + net.bias)


@torch.no_grad()
def test_a_bad_index_raises_as_eager_does() -> None:
    table = torch.randn(10, 4)
    hybrid = weft.hybridize(lambda i: table[i].sum(0))
    for rows in (3, 5, 6, 5, 6):
        hybrid(torch.randint(0, 10, (rows,)))
    with pytest.raises(IndexError):
        hybrid(torch.tensor([1, 2, 30, 4, 5]))
    index = torch.tensor([1, 2, 3, 4, 5])
    torch.testing.assert_close(hybrid(index), table[index].sum(0))


@torch.no_grad()
def test_nested_and_named_arguments_are_found_again() -> None:
    hybrid = weft.hybridize(lambda pair, *, scale: pair["x"] * scale + pair["y"])
    for rows in (3, 5, 6, 5, 6, 3):
        x, y = torch.randn(rows, 4), torch.randn(4)
        torch.testing.assert_close(hybrid({"x": x, "y": y}, scale=3.0), x * 3 + y)
    assert hybrid.traces == 2


@torch.no_grad()
def test_sizes_that_come_often_are_told_of(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_calls, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(rare_calls, "OFTEN", 0.0)
    x = torch.randn(5, 4)
    for _ in range(4):
        torch.testing.assert_close(hybrid(x), x * 2)
    assert len(hybrid.programs) == 2, "the first size's, and this one's own"


@torch.no_grad()
def test_new_sizes_that_take_long_together_are_told_of(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_calls, "MOST_SECONDS", 1e-9)
    [program] = hybrid.varying
    monkeypatch.setattr(VaryingProgram, "_share", lambda *_: 0.5)
    for _ in range(2):
        for rows in (9, 10):  # one pays for what the other took
            hybrid(torch.randn(rows, 4))
    assert sum(program.wasted.values()) > 0


def test_threads_alternate_between_sizes(hybrid: Any) -> None:
    failed: list[str] = []

    def call(seed: int) -> None:
        with torch.no_grad():
            for number in range(200):
                x = torch.full((2 + (seed + number) % 12, 4), float(seed * 1000 + number))
                if not torch.equal(hybrid(x), x * 2):
                    failed.append(f"{seed} {number}")

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []


def test_a_likeness_leaves_sizes_out_that_vary_and_keeps_the_others() -> None:
    items = CallItems((torch.randn(3, 4),), {})
    assert likeness_of(items, varying={0: frozenset({0})}) is not None
    views = CallItems((torch.randn(3, 4, 1, 1, 1, 1, 1),), {})  # sizes that lie elsewhere
    assert likeness_of(views, varying={0: frozenset({0})}) is None


@torch.no_grad()
def test_programs_that_take_turns_are_asked_once_for_sizes_that_are_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.api.varying.far_top", next_top)
    hybrid = weft.hybridize(doubled)
    tensors = [torch.randn(rows, 4) for rows in (5, 7, 30, 60, 120, 250, 500, 6, 31, 61, 121, 251, 501)]
    for _ in range(6):
        for x in tensors:
            hybrid(x)
    assert len(list(hybrid.varying)) > 4
    asked: list[Any] = []
    usual = VaryingProgram.takes_sizes
    monkeypatch.setattr(VaryingProgram, "takes_sizes", lambda self, given: asked.append(given) or usual(self, given))
    for x in tensors:
        torch.testing.assert_close(hybrid(x), x * 2)
    assert asked == []
