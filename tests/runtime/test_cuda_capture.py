"""Capture in CUDA graphs: what is refused and why, and that a replay is never of other inputs, parameters or streams.

The device is a stand-in here, which records on the CPU; tests/api/test_cuda.py runs the real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft.codegen.library import LibraryExecutable
from weft.ir.graph import Graph, Result, Value
from weft.ir.library import Call, Operand
from weft.ir.types import contiguous
from weft.plan.library_plan import plan_library
from weft.runtime.cuda_capture import MOST_CAPTURES, WARM_CALLS, CapturedExecutable, refusal

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


class StandIn:
    """Graphs on the CPU: repeating is running again into the memory that was recorded."""

    def __init__(self) -> None:
        self.captures, self.replays, self.current = 0, 0, "main"
        self.wrong = False

    def warm_up(self, run: Callable[[], object]) -> None:
        run()

    def capture(self, run: Callable[[], tuple[Any, ...]]) -> tuple[Callable[[], None], tuple[Any, ...]]:
        self.captures += 1
        results = run()

        def repeat() -> None:
            self.replays += 1
            for old, new in zip(results, run(), strict=True):
                old.copy_(new + 1 if self.wrong else new)

        return repeat, results

    def stream(self) -> object:
        return self.current


def graph_of(target: str, device: torch.device = CPU, inputs: int = 2) -> Graph:
    given = tuple(Value("input", (), contiguous(torch.float32, (2, 2), device), name=f"x{i}") for i in range(inputs))
    call = Call(target, tuple(Operand(index) for index in range(inputs)))
    value = Value("library", given, contiguous(torch.float32, (2, 2), device), {"call": call})
    return Graph("net", given, (value,), (Result(value),))


def executable(graphs: StandIn, lasting: tuple[int, ...] = (1,)) -> CapturedExecutable:
    return CapturedExecutable(LibraryExecutable(plan_library(graph_of("aten.mm.default"))), lasting, graphs)


def warm(run: CapturedExecutable, x: torch.Tensor, weight: torch.Tensor) -> None:
    for _ in range(WARM_CALLS + 1):
        assert torch.equal(run((x, weight))[0], x @ weight)


def test_it_captures_after_some_calls_and_replays_with_other_inputs() -> None:
    graphs = StandIn()
    run, weight = executable(graphs), torch.randn(2, 2)
    warm(run, torch.randn(2, 2), weight)
    assert graphs.captures == 1
    results = []
    for _ in range(3):
        x = torch.randn(2, 2)
        results.append((run((x, weight))[0], x @ weight))
    assert graphs.replays == 4  # the first, to compare
    assert all(torch.equal(found, expected) for found, expected in results)
    assert run.describe() == "captured in a CUDA graph"


def test_a_parameter_written_in_place_is_seen_and_a_replaced_one_is_captured_anew() -> None:
    graphs = StandIn()
    run, x, weight = executable(graphs), torch.randn(2, 2), torch.randn(2, 2)
    warm(run, x, weight)
    weight.mul_(2)
    assert torch.equal(run((x, weight))[0], x @ weight)
    assert graphs.captures == 1
    other = torch.randn(2, 2)
    assert torch.equal(run((x, other))[0], x @ other)
    assert graphs.captures == 2


def test_parameters_replaced_at_every_call_end_the_capturing() -> None:
    graphs = StandIn()
    run, x, weights = executable(graphs), torch.randn(2, 2), [torch.randn(2, 2) for _ in range(2 * MOST_CAPTURES)]
    warm(run, x, weights[0])
    for weight in weights:
        assert torch.equal(run((x, weight))[0], x @ weight)
    assert graphs.captures == MOST_CAPTURES
    assert run.describe() == "not captured: its parameters were replaced too often"


def test_a_replay_that_gives_something_else_is_never_used() -> None:
    graphs = StandIn()
    graphs.wrong = True
    run, x, weight = executable(graphs), torch.randn(2, 2), torch.randn(2, 2)
    warm(run, x, weight)
    warm(run, x, weight)
    assert run.describe() == "not captured: a replay does not give what the operators give"
    assert graphs.captures == 1


def test_a_capture_that_fails_leaves_the_plain_run() -> None:
    class Failing(StandIn):
        def capture(self, run: Callable[[], tuple[Any, ...]]) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

    run, x, weight = executable(Failing()), torch.randn(2, 2), torch.randn(2, 2)
    warm(run, x, weight)
    assert "not permitted" in run.describe()
    warm(run, x, weight)


def test_another_stream_runs_without_the_graph() -> None:
    graphs = StandIn()
    run, x, weight = executable(graphs), torch.randn(2, 2), torch.randn(2, 2)
    warm(run, x, weight)
    before = graphs.replays
    graphs.current = "side"
    assert torch.equal(run((x, weight))[0], x @ weight)
    graphs.current = None
    assert torch.equal(run((x, weight))[0], x @ weight)
    assert graphs.replays == before


def test_a_call_while_the_graph_is_busy_runs_without_it() -> None:
    graphs = StandIn()
    run, x, weight = executable(graphs), torch.randn(2, 2), torch.randn(2, 2)
    warm(run, x, weight)
    before = graphs.replays
    found: list[torch.Tensor] = []
    with run._busy:
        thread = threading.Thread(target=lambda: found.append(run((x, weight))[0]))
        thread.start()
        thread.join(10)
    assert torch.equal(found[0], x @ weight)
    assert graphs.replays == before


@pytest.mark.parametrize(
    ("graph", "native", "reason"),
    [
        (graph_of("aten.mm.default", CUDA), 0, None),
        (graph_of("aten.mm.default", CUDA), 1, "a part of it runs in machine code on the CPU"),
        (graph_of("aten.mm.default", CPU), 0, "input is on the cpu"),
        (graph_of("aten.bernoulli.default", CUDA, 1), 0, "aten.bernoulli.default is not on the list of safe operators"),
        (graph_of("aten.nonzero.default", CUDA, 1), 0, "aten.nonzero.default is not on the list of safe operators"),
    ],
)
def test_what_is_not_safe_is_refused_with_the_reason(graph: Graph, native: int, reason: str | None) -> None:
    assert refusal(plan_library(graph), native) == reason


def test_a_graph_that_gives_out_an_input_is_refused() -> None:
    graph = graph_of("aten.mm.default", CUDA)
    both = Graph("net", graph.inputs, graph.values, (*graph.results, Result(graph.inputs[0])))
    assert refusal(plan_library(both), 0) == "it gives out an input"
