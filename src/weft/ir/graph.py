"""Define values and Graphs: an immutable list of single results in the order they are computed, also in small ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from weft.ir.library import Path
from weft.ir.types import Type

NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's source."""

    filename: str
    line: int
    function: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One result: an operator of the op table applied to earlier values. Compared by identity."""

    op: str
    operands: tuple[Value, ...]
    type: Type
    attributes: Mapping[str, Any] = field(default_factory=lambda: NO_ATTRIBUTES)
    place: Place | None = None
    name: str = ""

    def __repr__(self) -> str:
        return f"<Value {self.name or self.op}: {self.type}>"


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a Graph: a value, or the view at `path` of it.

    Only a result that shares memory with an input or with another result has a path: whoever runs the Graph makes that
    view of the very tensor handed in or out, after all writes.
    """

    value: Value
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Write:
    """After everything is computed, the memory of `input` (the view at `path` of it) takes the elements of `value`."""

    input: Value
    value: Value
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """What to compute: inputs, values in order, writes into inputs, results."""

    name: str
    inputs: tuple[Value, ...]
    values: tuple[Value, ...]
    results: tuple[Result, ...]
    writes: tuple[Write, ...] = ()

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values)

    def roots(self) -> Iterator[Value]:
        """The values that results and writes refer to."""
        for result in self.results:
            yield result.value
        for write in self.writes:
            yield write.value

    def users(self) -> dict[Value, list[Value]]:
        """For every value, the values computed from it, in order."""
        users: dict[Value, list[Value]] = {value: [] for value in (*self.inputs, *self.values)}
        for value in self.values:
            for operand in dict.fromkeys(value.operands):
                users[operand].append(value)
        return users


def replace_operands(values: Iterable[Value], replacements: dict[Value, Value]) -> tuple[Value, ...]:
    """Copies of values that read the replacements; `replacements` comes back holding every value that was copied."""
    rebuilt: list[Value] = []
    for value in values:
        operands = tuple(replacements.get(operand, operand) for operand in value.operands)
        if operands != value.operands:
            replacements[value] = replace(value, operands=operands)
        rebuilt.append(replacements.get(value, value))
    return tuple(rebuilt)


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
