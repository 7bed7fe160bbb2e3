"""Let a backward read what its forward saved in the strides that kernels like.

A forward lays out what it saves for its backward as its kernels have it; the backward takes it so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from weft.ir.graph import Graph, Value, replace_operands
from weft.ir.ops import build
from weft.ir.types import TensorType, Type


@dataclass(frozen=True, slots=True, eq=False)
class SavedStrides:
    """How a graph's tensors differ from what it says.

    `loose` are roots that are nothing else than saved: their strides are free. `given` are inputs with other strides.
    """

    loose: frozenset[Value] = frozenset()
    given: Mapping[Value, Type] = field(default_factory=lambda: MappingProxyType({}))

    def with_given(self, graph: Graph) -> Graph:
        """The graph with the inputs as they are given; its values read them with the strides they had before."""
        replaced: dict[Value, Value] = {}
        copies: list[Value] = []
        inputs: list[Value] = []
        for value in graph.inputs:
            given = self.given.get(value, value.type)
            if given == value.type:
                inputs.append(value)
                continue
            assert isinstance(value.type, TensorType)
            inputs.append(replace(value, type=given))
            # Kernels see through it to the memory as it is; operators get a copy.
            replaced[value] = build("reshape", inputs[-1], shape=value.type.shape, type=value.type)
            copies.append(replaced[value])
        if not copies:
            return graph
        values = (*copies, *replace_operands(graph.values, replaced))
        results = tuple(replace(result, value=replaced.get(result.value, result.value)) for result in graph.results)
        writes = tuple(replace(write, value=replaced.get(write.value, write.value)) for write in graph.writes)
        return replace(graph, inputs=tuple(inputs), values=values, results=results, writes=writes)


PYTORCHS = SavedStrides()


def loose_in(lifted: Graph, graph: Graph, loose: frozenset[Value]) -> frozenset[Value]:
    """The loose roots of a graph in the lifted one, as far as each is no other root too."""
    pairs = list(zip(graph.roots(), lifted.roots(), strict=True))
    others = {new for old, new in pairs if old not in loose}
    return frozenset(new for old, new in pairs if old in loose) - others
