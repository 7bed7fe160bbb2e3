"""Time a small program beside PyTorch's operators when its plan is made, and keep what is faster.

A library's kernel may be better than one of ours: a sine, a product of a size that it was tuned for, a copy of odd
pieces. Where a program has many operators, what it saves between them counts for more; where it has a few, the clock
is asked. It is asked before the first call, so that all calls of a program have the same bits, and the answer is kept
with the plan.

Both run on numbers that are made up: of a kind that operators take, neither subnormal nor infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from weft.errors import WeftError
from weft.ir.graph import Graph, Value
from weft.ir.library import is_view
from weft.ir.ops import effect_of
from weft.ir.types import CPU, TensorType
from weft.plan.planned import PlannedGraph

MOST_OPERATORS = 12  # of PyTorch's that compute something: with more of them, what is saved between them decides
MOST_BYTES = 1 << 25  # of made up inputs and of results
# A program that is one region is entered by native code, which takes so much less than the call that is timed here;
# with fewer bytes than these it is over before PyTorch's operators have begun. One that hands on between kernels and
# operators is run by Python code, which takes so much more than the user's code, for a call and for each operator.
ENTERED_SOONER, ENTERED_LATER, CALLED_LATER = 3e-6, 3e-6, 1.5e-6
LEAST_BYTES = 1 << 14
FASTER, SOONER = 1.06, 1e-6  # operators are to be so many times as fast, and by so many seconds
ROUNDS, WARM, IN_A_ROW = 16, 2, 3
LONG = 2e-3  # a call that takes so long is not repeated
MOST_SECONDS = 8e-3  # of rounds, beyond which there are only a few
FEWEST_ROUNDS = 4
WINS = 0.75  # of the rounds
LOST = 0.5  # with fewer of the fewest rounds won, operators are not the faster ones

Runs = Callable[[list[Any]], object]


def may_be_slower(graph: Graph, planned: PlannedGraph, *, alone: bool) -> bool:
    """Tell whether kernels may take longer than PyTorch's operators, and both can be timed on numbers made up.

    Not where operators draw random numbers, write, look at values, or are not PyTorch's own. `alone`: it is one region.
    """
    if not planned.regions or graph.writes or not all(_can_be_made_up(value.type) for value in graph.inputs):
        return False
    calls = [value for value in graph.values if value.op not in ("item", "constant")]
    if not all(map(_is_pure, calls)):
        return False
    computing = sum(not is_view(value.attributes["call"].target) for value in calls)
    taken = sum(map(_bytes, [*graph.inputs, *graph.roots()]))
    return 0 < computing <= MOST_OPERATORS and taken <= MOST_BYTES and (taken >= LEAST_BYTES or not alone)


def _is_pure(value: Value) -> bool:
    is_call = value.op == "library" and effect_of(value) is None
    return is_call and value.attributes["call"].target.startswith("aten.")


def _can_be_made_up(kind: object) -> bool:
    return isinstance(kind, TensorType) and kind.device == CPU and not kind.dtype.is_complex


def _bytes(value: Value) -> int:
    kind = value.type
    return kind.size * kind.dtype.itemsize if isinstance(kind, TensorType) else 0


def compared(graph: Graph, kernels: Runs, operators: Runs, *, alone: bool) -> tuple[float, float] | None:
    """Give the shortest seconds that kernels and operators take, in turn; None where they cannot run so."""
    calls = sum(value.op == "library" for value in graph.values)
    sooner = (ENTERED_SOONER, 0.0) if alone else (-ENTERED_LATER, calls * CALLED_LATER)
    try:
        with torch.no_grad():
            return _compared(_made_up(graph), (kernels, operators), sooner)
    except WeftError:
        raise
    except Exception:  # noqa: BLE001 - numbers that are made up may be no index, or no matrix that can be factored
        return None


def operators_are_faster(seconds: tuple[float, float] | None) -> bool:
    """Tell whether operators are so much faster that it is no accident."""
    return seconds is not None and seconds[0] > max(FASTER * seconds[1], seconds[1] + SOONER)


def _made_up(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [_numbers(value.type, generator) for value in graph.inputs if isinstance(value.type, TensorType)]


def _numbers(kind: TensorType, generator: torch.Generator) -> torch.Tensor:
    """Make up a tensor that has its memory alone: a weight that others may write to is compared at every call."""
    made = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype)
    reach = 1 + sum((size - 1) * step for size, step in zip(kind.shape, kind.strides, strict=True))
    memory = made.as_strided((max(reach, 0) if kind.size else 0,), (1,))
    if kind.dtype.is_floating_point:
        memory.uniform_(0.1, 0.9, generator=generator)
    elif kind.dtype is torch.bool:
        memory.random_(0, 2, generator=generator)
    else:  # here alone: what fills much memory starts PyTorch's threads, which takes longer than all the rest
        memory.zero_()
    return made


def _compared(inputs: list[Any], ways: tuple[Runs, Runs], sooner: tuple[float, float]) -> tuple[float, float] | None:
    for _ in range(WARM):
        for run in ways:
            run(inputs)
    best, wins, rounds = [1e9, 1e9], 0, 0
    end = perf_counter() + MOST_SECONDS
    while rounds < ROUNDS and (rounds < FEWEST_ROUNDS or perf_counter() < end):
        times = [max(_seconds(run, inputs) - less, 1e-7) for run, less in zip(ways, sooner, strict=True)]
        best = [min(pair) for pair in zip(best, times, strict=True)]
        wins += times[0] > times[1]
        rounds += 1
        if rounds == FEWEST_ROUNDS and wins < LOST * rounds:
            break
    # Beside other programs a round may say anything; most of them say who is faster.
    if operators_are_faster((best[0], best[1])) and wins < WINS * rounds:
        return None
    return best[0], best[1]


def _seconds(run: Runs, inputs: list[Any]) -> float:
    """The shortest of a few calls in a row: its caches are then as they would be for good."""
    times = []
    for _ in range(IN_A_ROW):
        begin = perf_counter()
        run(inputs)
        times.append(perf_counter() - begin)
        if times[-1] > LONG:
            break
    return min(times)
