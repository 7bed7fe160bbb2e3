"""Hold a Graph in small ops together with the calls of PyTorch's operators that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.ir.graph import Graph, Value


@dataclass(frozen=True, slots=True, eq=False)
class LiftedGraph:
    """A lifted Graph.

    `values_of` has every value of the Graph before it was lifted, in order, with those of the lifted one that were
    added for it; `now` has what stands for it, where that is one value.
    """

    graph: Graph
    values_of: Mapping[Value, tuple[Value, ...]]
    now: Mapping[Value, Value]

    @classmethod
    def of(cls, graph: Graph) -> LiftedGraph:
        """Take a Graph whose values stand for themselves."""
        return cls(graph, {value: (value,) for value in graph.values}, {value: value for value in graph.values})
