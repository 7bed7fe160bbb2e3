"""Write numbers into a Graph in the place of its number inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from weft.ir.calls import Argument, Call, Operand, map_arguments
from weft.ir.graph import Graph, Value
from weft.ir.interpreter import evaluate


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
