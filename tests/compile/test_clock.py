"""Small programs are timed beside PyTorch's operators, and what is faster runs from the first call on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.api import pace
from weft.api.hybridize import hybrid_of
from weft.compile import clock, pipeline
from weft.config import overrides
from weft.guards.entry import MISSED
from weft.runtime.watch import has_other_writers

KERNELS, OPERATORS = (1e-3, 2e-3), (2e-3, 1e-3)  # seconds of both, so that these are faster
LARGE = 100, 100


@pytest.fixture(autouse=True)
def clock_is_on(tmp_path: Any) -> Iterator[None]:
    with overrides(clock="on", cache_dir=tmp_path, whole="off"):
        yield


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the clock says, first: then what it was asked."""
    found: list[Any] = [OPERATORS]

    def compared(graph: Any, *_: Any, **__: Any) -> Any:
        found.append(graph)
        return found[0]

    monkeypatch.setattr(pipeline, "compared", compared)
    return found


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + x


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return chain(x)


@pytest.mark.parametrize("faster", [KERNELS, OPERATORS])
@torch.no_grad()
def test_what_is_faster_runs(asked: list[Any], faster: tuple[float, float]) -> None:
    asked[0] = faster
    compiled, x = weft.hybridize(chain), torch.randn(LARGE)
    torch.testing.assert_close(compiled(x), chain(x))
    assert len(asked) == 2
    assert bool(weft.program(compiled, x).plan.regions) is (faster is KERNELS)
    if faster is OPERATORS:
        assert torch.equal(compiled(x), chain(x))
        assert "by the clock PyTorch's operators take 1.00 ms, kernels 2.00 ms" in weft.explain(compiled)


@torch.no_grad()
def test_the_answer_is_kept_with_the_plan(asked: list[Any]) -> None:
    x = torch.randn(LARGE)
    for _ in range(2):
        compiled = weft.hybridize(Chain())
        assert torch.equal(compiled(x), chain(x))
    assert len(asked) == 2
    with overrides(clock="off"):
        assert weft.program(weft.hybridize(Chain()), x).plan.regions


class Drawn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + x.sin()


def written(x: torch.Tensor) -> torch.Tensor:
    return x.sin_()


def many(x: torch.Tensor) -> torch.Tensor:
    for _ in range(clock.MOST_OPERATORS + 1):
        x = x.sin() + 1
    return x


@pytest.mark.parametrize(
    ("function", "shape"),
    [(Drawn(), LARGE), (written, LARGE), (many, LARGE), (chain, (5,))],
    ids=["drawn", "written", "many", "small"],
)
@torch.no_grad()
def test_the_clock_is_not_asked_of(asked: list[Any], function: Any, shape: tuple[int, ...]) -> None:
    weft.hybridize(function)(torch.randn(shape))
    assert asked == [OPERATORS]


def test_training_and_lower_precisions_are_not_asked_of(asked: list[Any]) -> None:
    net, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.randn(128, 64)
    weft.hybridize(net)(x).sum().backward()
    with torch.no_grad():
        weft.hybridize(nn.Linear(64, 64), precision="bfloat16")(x)
    assert asked == [OPERATORS]


class Run:
    """Takes so many seconds of a clock."""

    def __init__(self, now: list[float], seconds: float) -> None:
        self.now, self.seconds = now, seconds

    def __call__(self, inputs: list[Any]) -> None:
        self.now[0] += self.seconds


@pytest.mark.parametrize(
    ("kernels", "operators", "faster"),
    [(1e-4, 5e-5, True), (5e-5, 1e-4, False), (1.03e-4, 1e-4, False), (1.4e-6, 1e-6, False), (1.0, 0.5, True)],
)
def test_operators_have_to_be_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, kernels: float, operators: float, *, faster: bool
) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clock, "ENTERED_SOONER", 0.0)
    graph = weft.program(chain, torch.randn(3)).graph
    found = clock.compared(graph, Run(now, kernels), Run(now, operators), alone=True)
    assert found == pytest.approx((kernels, operators))
    assert clock.operators_are_faster(found) is faster


def test_what_cannot_run_on_numbers_that_are_made_up_is_not_compared() -> None:
    def fails(_: list[Any]) -> None:
        raise RuntimeError("no such index")

    graph = weft.program(chain, torch.randn(3)).graph
    assert clock.compared(graph, fails, fails, alone=False) is None
    assert not clock.operators_are_faster(None)


def test_a_winner_that_loses_most_rounds_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], count()

    def operators(_: list[Any]) -> None:
        now[0] += 1e-3 if next(calls) == 0 else 9e-3

    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clock, "WARM", 0)
    graph = weft.program(chain, torch.randn(3)).graph
    assert clock.compared(graph, Run(now, 4e-3), operators, alone=False) is None


@pytest.mark.parametrize(("kernels", "rounds"), [(5e-6, clock.FEWEST_ROUNDS), (2e-5, clock.ROUNDS)])
def test_operators_that_lose_the_first_rounds_are_timed_no_longer(
    monkeypatch: pytest.MonkeyPatch, kernels: float, rounds: int
) -> None:
    now, calls = [0.0], count()

    def operators(_: list[Any]) -> None:
        next(calls)
        now[0] += 1e-5

    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clock, "ENTERED_SOONER", 0.0)
    graph = weft.program(chain, torch.randn(3)).graph
    clock.compared(graph, Run(now, kernels), operators, alone=True)
    assert next(calls) == clock.WARM + clock.IN_A_ROW * rounds


@torch.no_grad()
def test_made_up_numbers_have_the_types_and_strides_of_inputs() -> None:
    def function(x: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x[places] * mask

    x = torch.randn(4, 6).t()
    given = (x, torch.tensor([1, 5]), torch.ones(2, 4, dtype=torch.bool))
    seen: list[list[torch.Tensor]] = []
    clock.compared(weft.program(function, *given).graph, seen.append, seen.append, alone=False)
    for made, real in zip(seen[0], given, strict=True):
        assert (made.shape, made.stride(), made.dtype) == (real.shape, real.stride(), real.dtype)
        assert not has_other_writers(made)  # a weight that others may write to is compared at every call
    assert not seen[0][1].any()


def calls_by_python(function: Any, x: torch.Tensor, calls: int = 60) -> int:
    compiled = weft.hybridize(function)
    hybrid, seen = hybrid_of(compiled), []
    by_python, unseen = hybrid._by_python, hybrid._unseen_calls

    def goes_by(*given: Any) -> Any:
        result = unseen(*given)
        seen.extend([given] if result is not MISSED else [])
        return result

    hybrid._by_python = lambda *given: seen.append(given) or by_python(*given)
    hybrid._unseen_calls = goes_by
    for _ in range(calls):
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
    return len(seen)


@pytest.mark.parametrize(("limit", "most"), [(0.0, 60), (1e9, pace.SAMPLES)])
@torch.no_grad()
def test_programs_of_operators_alone_take_turns_with_python(
    monkeypatch: pytest.MonkeyPatch, limit: float, most: int
) -> None:
    monkeypatch.setattr(pace, "SLOWER", limit)
    found = calls_by_python(lambda x: x.view(-1)[2:], torch.randn(4, 4))
    assert found == most if limit else found >= 60 - pace.WARM - pace.SAMPLES - 1


@torch.no_grad()
def test_programs_with_kernels_do_not_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLOWER", 0.0)
    assert calls_by_python(lambda x: x * 2, torch.randn(4, 4)) == 0


@torch.no_grad()
def test_what_prints_once_goes_on_printing_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pace, "SLOWER", 0.0)

    def function(x: torch.Tensor) -> torch.Tensor:
        print("seen")
        return x.view(-1)

    compiled = weft.hybridize(function)
    for _ in range(40):
        compiled(torch.randn(2, 2))
    assert capsys.readouterr().out == "seen\n"


@torch.no_grad()
def test_python_that_runs_by_the_clock_leaves_as_much_behind_as_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLOWER", 0.0)

    class Counting(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.last = x
            return x.t()

    net = weft.hybridize(Counting())
    for number in range(1, 60):
        x = torch.randn(2, 3)
        assert torch.equal(net(x), x.t())
        assert net.calls == number
        assert net.last is x
