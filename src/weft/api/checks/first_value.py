"""Find the first value of a program that differs from eager PyTorch's, with its line in the user's code.

First each value is computed by machine code and by PyTorch's operators: where these differ, it is the code. Else what
eager PyTorch computes, operator by operator, is looked for among the program's values: the first that is not there is
where the trace lost something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weft.api.checks.differences import Bound, largest, number_difference
from weft.compile.pipeline import compile_graph
from weft.errors import WeftError, source_line
from weft.ir.graph import Graph, Place, Result, Value
from weft.ir.interpreter import evaluate
from weft.ir.types import TensorType
from weft.trace.interception.capture import watching_operators
from weft.trace.interception.user_lines import user_place

MOST_OPERATORS = 100_000


@dataclass(frozen=True, slots=True)
class FirstValue:
    """Where both part: a line of the user's code, and a sentence about the value that is computed there."""

    where: str | None
    text: str


@dataclass(slots=True, eq=False)
class _Watched:
    """What eager PyTorch computed, operator by operator."""

    found: list[tuple[str, Place | None, torch.Tensor]] = field(default_factory=list)

    def on_operator(self, operator: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run an operator and note what it gives."""
        result = operator(*arguments, **keywords)
        for leaf in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and len(self.found) < MOST_OPERATORS:
                self.found.append((str(operator), user_place(), leaf.detach().clone()))
        return result

    def on_function(self, function: Callable[..., Any], arguments: Any, keywords: Any) -> tuple[Any, Any, Any]:
        """Take no part in calls of PyTorch's Python interface."""
        return function, arguments, keywords


def first_wrong_value(graph: Graph, inputs: Callable[[], Sequence[Any]], bound: Bound) -> FirstValue | None:
    """Find the first value that machine code computes otherwise than PyTorch's operators; None if there is none.

    `inputs` gives the inputs of a call anew, with the random state that it began with.
    """
    expected = interpreted(graph, inputs())
    numbers = [value for value in graph.values if isinstance(value.type, TensorType) and not _is_uninitialised(value)]
    every = replace(graph, results=tuple(Result(value) for value in numbers), writes=())
    with torch.no_grad():
        found = compile_graph(every, frozenset())(inputs())
    for value, ours in zip(numbers, found, strict=False):
        scale = max((largest(expected[operand]) for operand in value.operands if _is_tensor(operand)), default=0.0)
        other = number_difference(value.op, expected[value], ours, bound, scale)
        if other is not None:
            return FirstValue(_line(value.place), f"the value {_named(value)} {other.text}".replace("eager ", ""))
    return None


def interpreted(graph: Graph, inputs: Sequence[Any]) -> dict[Value, Any]:
    """Compute all values by PyTorch's operators."""
    with torch.no_grad():
        known: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
        for value in graph.values:
            known[value] = evaluate(value, [known[operand] for operand in value.operands])
    return known


def first_lost_value(
    graph: Graph, inputs: Callable[[], Sequence[Any]], eager: Callable[[], Any], bound: Bound
) -> FirstValue | None:
    """Find the first value that eager PyTorch computes and the program does not."""
    values = interpreted(graph, inputs())
    there: dict[tuple[torch.dtype, torch.Size], list[torch.Tensor]] = {}
    at_line: dict[tuple[str, int], list[tuple[Value, torch.Tensor]]] = {}
    for value, tensor in values.items():
        if isinstance(tensor, torch.Tensor):
            there.setdefault((tensor.dtype, tensor.shape), []).append(tensor)
            if value.place is not None:
                at_line.setdefault((value.place.filename, value.place.line), []).append((value, tensor))
    watched = _Watched()
    inputs()  # the random state of the call
    with _ending_early(), watching_operators(watched):
        eager()
    for operator, place, tensor in watched.found:
        rivals = there.get((tensor.dtype, tensor.shape), ())
        if place is None or any(number_difference("", tensor, rival, bound) is None for rival in rivals):
            continue
        near = at_line.get((place.filename, place.line), ())
        ours = next((rival for _, rival in near if (rival.dtype, rival.shape) == (tensor.dtype, tensor.shape)), None)
        compared = None if ours is None else number_difference("", tensor, ours, bound)
        text = compared.text if compared is not None else "is computed by eager PyTorch, and by no part of the program"
        return FirstValue(_line(place), f"the result of {operator} {text}")
    return None


@contextmanager
def _ending_early() -> Any:
    """Let code that raises end: what it computed until then is what is looked at."""
    try:
        yield
    except WeftError:
        raise
    except Exception:  # noqa: BLE001 - the user's code was seen to raise this before
        return


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType)


def _is_uninitialised(value: Value) -> bool:
    """Whether a value is memory that nobody has written to yet."""
    return value.op == "library" and "empty" in value.attributes["call"].target


def _line(place: Place | None) -> str | None:
    return None if place is None else source_line(place.filename, place.line)


def _named(value: Value) -> str:
    return value.op if value.op != "library" else str(value.attributes["call"].target)
