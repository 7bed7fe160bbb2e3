"""A function and its arguments -> what tracing makes of it, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.ir.printer import print_graph
from weft.trace.python_state.reachable import find_state
from weft.trace.request import Request
from weft.trace.several_traces import trace_program
from weft.trace.traced import Traced


def traced(function: Callable[..., Any], *arguments: Any, numbers: frozenset[int] = frozenset()) -> Traced:
    return trace_program(
        Request(function, arguments, {}, "f", find_state(function), ("x", "y", "z")[: len(arguments)], numbers)
    )


def lines(graph: Any) -> list[str]:
    """The lines of a graph's text, without places and the last brace."""
    return [line.partition("  #")[0].strip() for line in print_graph(graph).splitlines() if line not in ("}", "")]
