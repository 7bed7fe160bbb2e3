"""Write numbers into a Graph in the place of its number inputs, and other sizes in the place of those that vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from weft.ir.extents import Extent, today
from weft.ir.graph import Graph, Value, Write
from weft.ir.interpreter import evaluate
from weft.ir.library import Argument, Call, Operand, ViewStep, WrittenPlace, map_arguments
from weft.ir.types import TensorType, TupleType


def at_sizes(graph: Graph, sizes: Mapping[Value, int]) -> Graph:
    """The Graph where nothing varies: of these sizes."""
    return with_sizes(graph, lambda size: size.expression.value(sizes.__getitem__))


def value_at_sizes(value: Value, sizes: Mapping[Value, Any]) -> Value:
    """A value of these sizes, of operands that are still of any."""
    if not (has_extents(value.type) or any(map(has_extents, value.attributes.values()))):
        return value

    def now_of(size: Extent) -> int:
        return int(size.expression.value(sizes.__getitem__))

    attributes = {name: _with_extents(entry, now_of) for name, entry in value.attributes.items()}
    return replace(value, type=_with_extents(value.type, now_of), attributes=MappingProxyType(attributes))


def with_sizes(graph: Graph, now_of: Callable[[Extent], int]) -> Graph:
    """The same Graph with other sizes in the place of those that vary."""

    def changed(thing: Any) -> Any:
        return _with_extents(thing, now_of)

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
        writes=tuple(Write(now[write.input], now[write.value], changed(write.path)) for write in graph.writes),
    )


def _with_extents(thing: Any, now_of: Callable[[Extent], int]) -> Any:
    """The same thing, a type or what a call carries, with other sizes in the place of those that vary."""

    def changed(part: Any) -> Any:
        return _with_extents(part, now_of)

    if isinstance(thing, Extent):
        return now_of(thing)
    if isinstance(thing, tuple):
        return tuple(map(changed, thing))
    if isinstance(thing, Call):
        return Call(thing.target, changed(thing.arguments), _named(thing.keywords, changed), changed(thing.written))
    if isinstance(thing, ViewStep):
        return ViewStep(thing.target, changed(thing.arguments), _named(thing.keywords, changed), thing.item)
    if isinstance(thing, WrittenPlace):
        return WrittenPlace(thing.base, changed(thing.path))
    if isinstance(thing, TensorType) and has_extents(thing):
        kind = replace(thing, shape=changed(thing.shape), strides=changed(thing.strides))
        lies_with_gaps = not (has_extents(thing.strides) or dense_order(thing))  # as a part, or what is repeated, does
        return kind if lies_with_gaps or has_extents(kind.strides) else _like_dense(kind, thing)
    return TupleType(changed(thing.items)) if isinstance(thing, TupleType) else thing


def _named(keywords: tuple[tuple[str, Any], ...], changed: Callable[[Any], Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, changed(argument)) for name, argument in keywords)


def _like_dense(kind: TensorType, before: TensorType) -> TensorType:
    """A type of other sizes whose dimensions lie in the same order, without gaps."""
    strides, step = [0] * kind.rank, 1
    for place in sorted(range(kind.rank), key=lambda place: (today(before.strides[place]), -place)):
        strides[place], step = step, step * max(today(kind.shape[place]), 1)
    return replace(kind, strides=tuple(strides))


def path_at_sizes(path: tuple[ViewStep, ...], sizes: Mapping[Value, int]) -> tuple[ViewStep, ...]:
    """A path of views at these sizes."""
    found: tuple[ViewStep, ...] = _with_extents(path, lambda size: size.expression.value(sizes.__getitem__))
    return found


def has_extents(thing: Any) -> bool:
    """Whether sizes among sizes, in types, or in what a call carries, vary."""
    if isinstance(thing, Call):
        return has_extents((thing.arguments, thing.keywords, thing.written))
    if isinstance(thing, ViewStep):
        return has_extents((thing.arguments, thing.keywords))
    if isinstance(thing, WrittenPlace):
        return has_extents(thing.path)
    if isinstance(thing, TensorType):
        return has_extents(thing.shape) or has_extents(thing.strides)
    if isinstance(thing, TupleType):
        return has_extents(thing.items)
    return any(map(has_extents, thing)) if isinstance(thing, tuple) else isinstance(thing, Extent)


def found_sizes(graph: Graph) -> list[Value]:
    """The numbers that a graph's sizes are made of, in order."""
    found: dict[Value, None] = {}

    def note(thing: Any) -> None:
        if isinstance(thing, Extent):
            found.update(dict.fromkeys(sorted(thing.expression.atoms(), key=lambda atom: order.get(atom, -1))))
        elif isinstance(thing, tuple):
            for item in thing:
                note(item)
        elif isinstance(thing, TensorType):
            note((thing.shape, thing.strides))
        elif isinstance(thing, TupleType):
            note(thing.items)
        elif isinstance(thing, Call):
            note((thing.arguments, *(argument for _, argument in thing.keywords)))
            note(tuple((*step.arguments, *step.keywords) for place in thing.written for step in place.path))

    order = {value: place for place, value in enumerate(graph.inputs)}
    for value in (*graph.inputs, *graph.values):
        note(value.type)
        for attribute in value.attributes.values():
            note(attribute)
    return list(found)


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


def bind_numbers(graph: Graph, numbers: Mapping[Value, Any]) -> Graph:
    """Replace number inputs by literals, and arithmetic on them by what it gives; results that are numbers go."""
    known: dict[Value, Any] = dict(numbers)
    rebuilt: dict[Value, Value] = {}
    values: list[Value] = []
    for value in graph.values:
        if value.op == "number" and all(operand in known for operand in value.operands):
            known[value] = evaluate(value, [known[operand] for operand in value.operands])
            continue
        bound = _bound(value, known, rebuilt)
        rebuilt[value] = bound
        values.append(bound)
    return replace(
        graph,
        inputs=tuple(value for value in graph.inputs if value not in numbers),
        values=tuple(values),
        results=tuple(
            replace(result, value=rebuilt.get(result.value, result.value))
            for result in graph.results
            if result.value not in known
        ),
        writes=tuple(replace(write, value=rebuilt.get(write.value, write.value)) for write in graph.writes),
    )


def _bound(value: Value, known: Mapping[Value, Any], rebuilt: Mapping[Value, Value]) -> Value:
    if not any(operand in known or operand in rebuilt for operand in value.operands):
        return value
    kept = [operand for operand in value.operands if operand not in known]
    operands = tuple(rebuilt.get(operand, operand) for operand in kept)
    call = value.attributes.get("call")
    if call is None or len(kept) == len(value.operands):
        return replace(value, operands=operands)

    def fill(argument: Argument) -> Argument:
        if not isinstance(argument, Operand):
            return argument
        operand = value.operands[argument.index]
        return known[operand] if operand in known else Operand(kept.index(operand))

    changed: Call = replace(
        call,
        arguments=map_arguments(call.arguments, fill),
        keywords=tuple((name, map_arguments(argument, fill)) for name, argument in call.keywords),
        written=tuple(replace(place, base=kept.index(value.operands[place.base])) for place in call.written),
    )
    return replace(value, operands=operands, attributes=MappingProxyType({**value.attributes, "call": changed}))
