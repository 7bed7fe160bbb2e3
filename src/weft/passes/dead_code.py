"""Remove values that no result, no write and no effect needs."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.graph import Graph, Value
from weft.passes.effects import has_effect


def remove_dead_code(graph: Graph) -> Graph:
    """Keep what results and writes are computed from, and what has an effect of its own, such as a random draw."""
    needed: set[Value] = set(graph.roots())
    for value in reversed(graph.values):
        if value in needed or has_effect(value):
            needed.add(value)
            needed.update(value.operands)
    values = tuple(value for value in graph.values if value in needed)
    return graph if len(values) == len(graph.values) else replace(graph, values=values)
