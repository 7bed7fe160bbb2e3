"""Split a bounded Graph in two: numbers that follow from sizes alone, made once for each sizes, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.ir.extents import Polynomial
from weft.ir.graph import Graph, Result, Value, replace_operands
from weft.ir.ops import OPS
from weft.ir.types import NumberType, TensorType
from weft.passes.bounding import BoundedGraph
from weft.passes.within import Within

ARITHMETIC = ("number", "scalar", "constant")


@dataclass(frozen=True, slots=True, eq=False)
class SizedGraph:
    """A Graph whose last inputs are numbers made of sizes, as tensors without dimensions.

    `of_sizes` makes these of the inputs that are sizes; `sizes` are those that hold a size, with what it is. `within`
    is that of the results.
    """

    graph: Graph
    of_sizes: Graph
    sizes: Mapping[Value, Polynomial]
    within: tuple[Within, ...]


def split_by_sizes(bounded: BoundedGraph, sizes: Sequence[Value]) -> SizedGraph:
    """Split a graph whose inputs `sizes` are numbers that vary."""
    graph = bounded.graph
    alone = _made_of(graph.values, sizes)
    roots = dict.fromkeys(graph.roots())
    read = {operand for value in graph.values if value not in alone for operand in value.operands}
    ends = [
        value
        for value in graph.values
        if value in alone
        and value.op != "constant"
        and isinstance(value.type, TensorType)
        and (value in read or value in roots or value in bounded.sizes)
    ]
    given = {end: Value("input", (), end.type, place=end.place, name=f"size{place}") for place, end in enumerate(ends)}
    rest = _needed([value for value in graph.values if value not in given], [*roots], given)
    now = dict(given)
    values = replace_operands(rest, now)
    main = replace(
        graph,
        inputs=(*graph.inputs, *given.values()),
        values=values,
        results=tuple(replace(result, value=now.get(result.value, result.value)) for result in graph.results),
        writes=tuple(replace(write, value=now.get(write.value, write.value)) for write in graph.writes),
    )
    makers = tuple(_needed([value for value in graph.values if value in alone], ends, {}))
    of_sizes = Graph(f"{graph.name}_sizes", tuple(sizes), makers, tuple(map(Result, ends)))
    # A size that an operator finds out is none of a call's.
    found = {given[value]: size for value, size in bounded.sizes.items() if value in given}
    return SizedGraph(main, of_sizes, found, bounded.within)


def _made_of(values: Iterable[Value], sizes: Sequence[Value]) -> set[Value]:
    """The numbers, and tensors without dimensions, that are made of sizes and constants alone."""
    found = {*sizes}
    for value in values:
        kind = value.type
        is_one = isinstance(kind, NumberType) or (isinstance(kind, TensorType) and kind.shape == ())
        usual = value.op in ARITHMETIC or OPS[value.op].elementwise
        if is_one and usual and found.issuperset(value.operands):
            found.add(value)
    return found


def _needed(values: Sequence[Value], roots: Iterable[Value], given: Mapping[Value, Value]) -> list[Value]:
    """Those of some values that roots are made of, where others are given."""
    wanted, found = {*roots}, []
    for value in reversed(values):
        if value in wanted or OPS[value.op].effect is not None or _may_refuse(value):
            found.append(value)
            wanted.update(operand for operand in value.operands if operand not in given)
    return found[::-1]


def _may_refuse(value: Value) -> bool:
    return value.op in ("library", "update")
