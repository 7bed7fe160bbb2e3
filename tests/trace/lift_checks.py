"""A traced program before and after lifting, run side by side: what stays library, and whether the answers agree."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tests.conformance.compare import form_difference, same_bits, same_rounding, value_difference, within_native_bound

from weft.ir.graph import Graph
from weft.ir.interpreter import interpret
from weft.ir.verifier import verify
from weft.trace.lift.lift import lift
from weft.trace.python_state.reachable import find_state
from weft.trace.python_state.trees import TensorLeaf
from weft.trace.request import Request
from weft.trace.several_traces import trace_program
from weft.trace.traced import Traced


@dataclass(frozen=True)
class Checked:
    """What a check found: targets that are still library, problems in sentences, the lifted Graph."""

    remaining: tuple[str, ...]
    problems: tuple[str, ...]
    graph: Graph


def traced_call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Traced:
    """Trace a call of a function or module."""
    return trace_program(Request(function, arguments, keywords, "checked", find_state(function)))


def remaining(graph: Graph) -> tuple[str, ...]:
    """The operators that the results of a Graph need and that are not lifted."""
    needed = set(graph.roots())
    for value in reversed(graph.values):
        if value in needed:
            needed.update(value.operands)
    calls = (value for value in graph if value in needed and value.op in ("library", "update"))
    return tuple(value.attributes["call"].target for value in calls)


def inputs_of(traced: Traced) -> list[Any]:
    """The tensors and numbers that a traced program was traced with."""
    return [*(entry.tensor.detach() for entry in traced.inputs), *(entry.number for entry in traced.numbers)]


def fresh(inputs: Sequence[Any]) -> list[Any]:
    """Copies with the same strides, offsets and shared memory."""
    memo: dict[int, Any] = {}
    return [copy.deepcopy(entry, memo) for entry in inputs]


def check(graph: Graph, inputs: Sequence[Any], exact: Sequence[Any] | None = None) -> Checked:
    """Lift a Graph and compare it with itself as it was, on the same inputs, writes included.

    `exact` are results in float64, which bound what may differ in rounding; without it half of all bits must agree.
    """
    lifted = lift(graph)
    verify(lifted)
    before, after = fresh(inputs), fresh(inputs)
    expected, actual = interpret(graph, before), interpret(lifted, after)
    problems: list[str] = []
    pairs = list(zip([*expected, *before], [*actual, *after], strict=True))
    for position, (left, right) in enumerate(pairs):
        if isinstance(left, torch.Tensor):
            known = exact[position] if exact is not None and position < len(exact) else None
            problem = difference(left, right, known)
            problems += [f"result {position}: {problem}"] if problem else []
    return Checked(remaining(lifted), tuple(problems), lifted)


def difference(expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor | None) -> str | None:
    """What is wrong with a result, if anything."""
    form = form_difference(expected, actual)
    if form or same_bits(expected, actual):
        return form
    if not expected.is_floating_point():
        return value_difference(expected, actual)
    if expected.dtype is torch.float64:
        fits = same_rounding(expected, actual)
    elif isinstance(exact, torch.Tensor) and exact.shape == expected.shape:
        fits = within_native_bound(actual, expected, exact)
    else:
        tolerance = max(1e-4, 4 * torch.finfo(expected.dtype).eps)
        fits = torch.allclose(actual, expected, rtol=tolerance, atol=tolerance / 10, equal_nan=True)
    return None if fits else value_difference(expected, actual)


def exact_results(traced: Traced, outcome: Any) -> list[Any]:
    """The tensors that a float64 run gave, in the order of a Graph's results."""
    leaves = torch.utils._pytree.tree_leaves(outcome)
    found: list[Any] = [None] * len(traced.graph.results)
    for leaf, tensor in zip(traced.leaves, leaves, strict=False):
        if isinstance(leaf, TensorLeaf):
            found[leaf.index] = tensor
    return found
