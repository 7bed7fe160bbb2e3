"""Write other sizes into a Graph in the place of those that vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from weft.ir.calls import Call, ViewStep, map_arguments
from weft.ir.extents import Extent, today
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType, TupleType


def at_sizes(graph: Graph, sizes: Mapping[Value, int]) -> Graph:
    """The Graph where nothing varies: of these sizes."""
    return with_sizes(graph, lambda size: size.expression.value(sizes.__getitem__))


def with_sizes(graph: Graph, now_of: Callable[[Extent], int]) -> Graph:
    """The same Graph with other sizes in the place of those that vary."""

    def changed(thing: Any) -> Any:
        if isinstance(thing, Extent):
            return now_of(thing)
        if isinstance(thing, tuple):
            return tuple(map(changed, thing))
        if isinstance(thing, Call):
            keywords = tuple((name, changed(entry)) for name, entry in thing.keywords)
            return replace(thing, arguments=changed(thing.arguments), keywords=keywords)
        if isinstance(thing, TensorType) and has_extents(thing):
            again = replace(thing, shape=changed(thing.shape), strides=changed(thing.strides))
            return again if has_extents(thing.strides) else _like_dense(again, thing)
        return TupleType(changed(thing.items)) if isinstance(thing, TupleType) else thing

    now: dict[Value, Value] = {}
    for value in (*graph.inputs, *graph.values):
        operands = tuple(now[operand] for operand in value.operands)
        attributes = MappingProxyType({name: changed(entry) for name, entry in value.attributes.items()})
        kind = changed(value.type)
        is_same = kind is value.type and operands == value.operands and not value.attributes
        now[value] = value if is_same else replace(value, operands=operands, type=kind, attributes=attributes)
    return replace(
        graph,
        inputs=tuple(now[value] for value in graph.inputs),
        values=tuple(now[value] for value in graph.values),
        results=tuple(replace(result, value=now[result.value]) for result in graph.results),
        writes=tuple(replace(write, input=now[write.input], value=now[write.value]) for write in graph.writes),
    )


def _like_dense(kind: TensorType, before: TensorType) -> TensorType:
    """A type of other sizes whose dimensions lie in the same order, without gaps."""
    strides, step = [0] * kind.rank, 1
    for place in sorted(range(kind.rank), key=lambda place: (today(before.strides[place]), -place)):
        strides[place], step = step, step * max(today(kind.shape[place]), 1)
    return replace(kind, strides=tuple(strides))


def path_at_sizes(path: tuple[ViewStep, ...], sizes: Mapping[Value, int]) -> tuple[ViewStep, ...]:
    """A path of views at these sizes."""

    def known(leaf: Any) -> Any:
        return leaf.expression.value(sizes.__getitem__) if isinstance(leaf, Extent) else leaf

    return tuple(
        replace(
            step,
            arguments=map_arguments(step.arguments, known),
            keywords=tuple((name, map_arguments(argument, known)) for name, argument in step.keywords),
        )
        for step in path
    )


def has_extents(thing: Any) -> bool:
    """Whether sizes among sizes, or in types, vary."""
    if isinstance(thing, TensorType):
        return has_extents(thing.shape) or has_extents(thing.strides)
    if isinstance(thing, TupleType):
        return has_extents(thing.items)
    return any(map(has_extents, thing)) if isinstance(thing, tuple) else isinstance(thing, Extent)


def dense_order(kind: TensorType) -> tuple[int, ...]:
    """The dimensions of a tensor without gaps, the outermost in memory first; none of a tensor with gaps."""
    order = sorted(range(kind.rank), key=lambda place: (-today(kind.strides[place]), -today(kind.shape[place])))
    step = 1
    for place in reversed(order):
        size = today(kind.shape[place])
        if size != 1 and today(kind.strides[place]) != step:
            return ()
        step *= max(size, 1)
    return tuple(order)
