"""Remove values that no result, no write and no effect needs."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.graph import Graph, Value
from weft.ir.ops import may_refuse
from weft.passes.effects import has_effect


def remove_dead_code(graph: Graph) -> Graph:
    """Keep what results and writes are computed from, and what does more: draws at random, or raises for some data."""
    needed: set[Value] = set(graph.roots())
    for value in reversed(graph.values):
        if value in needed or has_effect(value) or may_refuse(value):
            needed.add(value)
            needed.update(value.operands)
    values = tuple(value for value in graph.values if value in needed)
    return graph if len(values) == len(graph.values) else replace(graph, values=values)
