"""Calls of sizes that have come often are native from end to end, in programs for many sizes, and right as before."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import weft
from weft.api import sized_calls
from weft.api.sized_calls import SizedCalls
from weft.api.varying import VaryingProgram
from weft.codegen.calls.known_sizes import slot_of
from weft.guards import entry, known_sizes
from weft.runtime import varying_sizes
from weft.runtime.built_in import table_of


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let native code run the third call of the same sizes, and all that follow."""
    monkeypatch.setattr(sized_calls, "CALLS_TO_A_TIMED_ONE", 1)
    monkeypatch.setattr(varying_sizes, "TIMES_TO_LEARN", 3)
    monkeypatch.setattr(VaryingProgram, "is_too_large", lambda *_: False)
    with torch.no_grad():
        yield


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The results of the calls of programs for many sizes that Python has seen."""
    found: list[Any] = []
    usual = SizedCalls.run

    def run(self: SizedCalls, *arguments: Any, **keywords: Any) -> Any:
        found.append(usual(self, *arguments, **keywords))
        return found[-1]

    monkeypatch.setattr(SizedCalls, "run", run)
    return found


def known(function: Callable[..., Any], *calls: tuple[Any, ...], times: int = 6) -> Any:
    """A function with a program for many sizes, of which those of all calls are known."""
    hybrid = weft.hybridize(function)
    for _ in range(times):
        for arguments in calls:
            torch.testing.assert_close(hybrid(*arguments), function(*arguments))
    return hybrid


def rows(*counts: int, width: int = 4) -> list[tuple[Any, ...]]:
    return [(torch.randn(count, width),) for count in counts]


def test_python_sees_few_of_many_calls_of_known_sizes(seen: list[Any]) -> None:
    hybrid = known(torch.tanh, *rows(3, 5, 7))
    seen.clear()
    for _ in range(100):
        x = torch.randn(5, 4)
        torch.testing.assert_close(hybrid(x), x.tanh())
    assert 1 <= len(seen) <= 100 / entry.MOST_UNSEEN + 1
    assert sum(program.calls.count for program in hybrid.varying) > 100, "calls that it does not see are counted"


def test_sizes_may_come_in_any_order(seen: list[Any]) -> None:
    calls = rows(*range(2, 40))
    hybrid = known(torch.tanh, *calls, times=5)
    seen.clear()
    for number in range(300):
        (x,) = calls[7 * number % len(calls)]
        torch.testing.assert_close(hybrid(x), x.tanh())
    assert len(seen) < 60


def test_more_sizes_than_slots_are_found(seen: list[Any]) -> None:
    calls = rows(*range(2, 250), width=2)
    hybrid = known(torch.tanh, *calls, times=5)
    seen.clear()
    for (x,) in calls:
        torch.testing.assert_close(hybrid(x), x.tanh())
    assert len(seen) < len(calls) / 2
    assert sum(program.guarded.known is not None for program in hybrid.varying) >= 1


def test_sizes_that_want_the_same_slot_take_turns(monkeypatch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    monkeypatch.setattr(known_sizes, "FIRST_SLOTS", 1)
    monkeypatch.setattr(known_sizes, "MOST_SLOTS", 1)
    calls = rows(3, 5, 7)
    hybrid = known(torch.tanh, *calls, times=20)
    seen.clear()
    (x,) = calls[1]
    for _ in range(10):
        torch.testing.assert_close(hybrid(x), x.tanh())
    assert len(seen) < 5


def test_a_slot_is_one_of_the_table() -> None:
    found = [slot_of([size, 4, 4 * size], 63) for size in range(1000)]
    assert {*found} == {*range(64)}
    assert max(map(found.count, {*found})) < 40


def test_a_slot_has_another_program_before_the_one_in_it_may_end() -> None:
    class Run:
        def __init__(self) -> None:
            self.state = (object(),)

    table, held, second = known_sizes._Table([(0, 16)], 1), [], Run()
    table.put(known_sizes._Entry([5], table_of([(5,)]), Run()))
    weakref.finalize(table.at[0].run, lambda: held.append(table._words[0]))
    table.put(known_sizes._Entry([5], table_of([(5,)]), second))
    assert held == [id(second.state)]


def test_more_threads_than_may_still_run_are_seen_all_the_same(seen: list[Any]) -> None:
    hybrid = known(torch.tanh, *rows(3, 5, 7))
    (x,) = rows(5)[0]
    [program] = hybrid.varying
    for account in program.calls._accounts.values():
        if account is not None and account.bound is not None:
            account.bound._left.value = -1
    seen.clear()
    torch.testing.assert_close(hybrid(x), x.tanh())
    assert len(seen) == 1


def test_other_strides_of_known_sizes_are_not_taken_for_them() -> None:
    hybrid = known(torch.tanh, *rows(3, 5, 7))
    for x in (torch.randn(5, 8)[:, ::2], torch.randn(4, 5).T, torch.randn(10, 4)[::2], torch.randn(1, 4).expand(5, 4)):
        torch.testing.assert_close(hybrid(x), x.tanh())


def test_slices_may_begin_anywhere() -> None:
    hybrid = known(torch.tanh, *rows(3, 5, 7))
    memory = torch.randn(1000)
    for begin in range(9):
        x = memory[begin : begin + 20].view(5, 4)
        torch.testing.assert_close(hybrid(x), x.tanh())


def test_weights_that_change_are_read_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
    hybrid = known(net.forward, *rows(3, 5, 7))
    (x,) = rows(5)[0]
    for change in (
        lambda: net[0].weight.mul_(2),
        lambda: setattr(net[0], "weight", nn.Parameter(torch.randn(32, 4))),
        lambda: net[2].weight.data.copy_(torch.randn(2, 32)),
        lambda: setattr(net[2].bias, "data", torch.randn(2)),
        lambda: net.load_state_dict(
            nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).state_dict(), assign=True
        ),
    ):
        change()
        for _ in range(4):
            torch.testing.assert_close(hybrid(x), net(x))


def test_several_results_come_in_order_and_in_their_places(seen: list[Any]) -> None:
    def parts(x: torch.Tensor) -> dict[str, Any]:
        total = x.sum(0)
        return {"b": [x * 2, total], "a": (total + 1, x.mean(1))}

    calls = rows(3, 5, 7)
    hybrid = known(parts, *calls)
    seen.clear()
    (x,) = calls[1]
    torch.testing.assert_close(hybrid(x), parts(x))
    assert [*hybrid(x)] == ["b", "a"]
    assert seen == []


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)], ids=str)
def test_tensors_are_moved_to_larger_memory_and_back(order: tuple[int, ...], seen: list[Any]) -> None:
    def pooled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.max_pool2d(x, 3, 2, 1), x.relu() + 1

    def image(height: int, width: int) -> torch.Tensor:
        shape = [(2, 3, height, width)[place] for place in order]
        return torch.randn(shape).permute([order.index(place) for place in range(4)])

    calls = [(image(height, width),) for height, width in ((9, 8), (13, 5), (6, 11), (12, 6))]
    hybrid = known(pooled, *calls)
    seen.clear()
    for (x,) in calls * 3:
        x.copy_(torch.randn(x.shape))
        for found, expected in zip(hybrid(x), pooled(x), strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
    if order != (0, 2, 3, 1):  # whose windows are PyTorch's
        assert len(seen) < 2


def test_numbers_made_of_sizes_stay_those_of_the_call() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0] + torch.arange(x.shape[0])[:, None] / x.shape[0]

    hybrid = known(scaled, *rows(3, 5, 7, 2))
    for (x,) in rows(5, 3, 7, 2, 4, 5, 3) * 3:
        torch.testing.assert_close(hybrid(x), scaled(x))


def test_a_bad_index_raises_as_eager_does_and_good_ones_go_on() -> None:
    table = torch.randn(10, 4)
    hybrid = known(lambda i: table[i].sum(0), *[(torch.randint(0, 10, (count,)),) for count in (3, 5, 6)])
    for _ in range(3):
        with pytest.raises(IndexError):
            hybrid(torch.tensor([1, 2, 30, 4, 5]))
        index = torch.tensor([1, 2, 3, 4, 9])
        torch.testing.assert_close(hybrid(index), table[index].sum(0))


def test_modes_are_those_of_the_call() -> None:
    hybrid = known(torch.tanh, *rows(3, 5, 7))
    x = torch.randn(5, 4)
    for _ in range(5):
        with torch.inference_mode():
            assert hybrid(x).is_inference()
        assert not hybrid(x).is_inference()
        with torch.enable_grad():
            y = x.clone().requires_grad_()
            hybrid(y).sum().backward()
            torch.testing.assert_close(y.grad, 1 - x.tanh() ** 2)


def test_arguments_in_containers_and_by_name(seen: list[Any]) -> None:
    def scaled(pair: dict[str, torch.Tensor], *, scale: float) -> torch.Tensor:
        return pair["x"] * scale + pair["y"]

    hybrid = weft.hybridize(scaled)
    y = torch.randn(4)
    for number, count in enumerate((3, 5, 6) * 8):
        if number == 15:
            seen.clear()
        x = torch.randn(count, 4)
        torch.testing.assert_close(hybrid({"x": x, "y": y}, scale=3.0), x * 3 + y)
    assert len(seen) < 4


def test_threads_alternate_between_sizes() -> None:
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8)).eval()
    calls = rows(*range(2, 14), width=16)
    hybrid = known(net.forward, *calls)
    expected = [net(x) for (x,) in calls]
    failed: list[str] = []

    def call(seed: int) -> None:
        with torch.no_grad():
            for number in range(2000):
                place = (seed + number) % len(calls)
                if not torch.allclose(hybrid(*calls[place]), expected[place], atol=1e-5):
                    failed.append(f"{seed} {number}")

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []


def test_results_are_each_call_s_own() -> None:
    hybrid = known(torch.tanh, *rows(3, 5, 7))
    (x,) = rows(5)[0]
    first = hybrid(x)
    kept = first.clone()
    hybrid(x + 1)
    assert torch.equal(first, kept)


def test_memory_of_tensors_that_lie_as_the_largest_would_is_not_kept_behind_a_frame() -> None:
    hybrid = known(torch.tanh, *rows(300, 500, 450, width=512), times=3)
    [program] = hybrid.varying
    execute = program.guarded.program._execute
    assert execute._code._pool.size < 1 << 16
