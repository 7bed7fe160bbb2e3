"""Compare two Graphs: same types, ops, attributes, operands, writes and results.

Names and the user's lines do not count. A call's operands count by what the call does with them, not by how they are
numbered: the text form does not keep an order that means nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.ir.graph import Graph, Value
from weft.ir.library import Call, Operand, WrittenPlace, map_arguments
from weft.ir.literals import same_constant


def same_graph(left: Graph, right: Graph) -> bool:
    """Whether two Graphs say the same."""
    if len(left.inputs) != len(right.inputs) or len(left.values) != len(right.values):
        return False
    numbers: dict[Value, int] = {}
    for graph in (left, right):
        numbers |= {value: number for number, value in enumerate((*graph.inputs, *graph.values))}
    pairs = zip((*left.inputs, *left.values), (*right.inputs, *right.values), strict=True)
    if not all(same_value(one, other, numbers) for one, other in pairs):
        return False
    return equal(_ends(left, numbers), _ends(right, numbers))


def same_value(left: Value, right: Value, numbers: dict[Value, int]) -> bool:
    """Whether two values say the same, where operands with the same number are the same."""
    if (left.op, left.type) != (right.op, right.type):
        return False
    return equal(_meaning(left, numbers), _meaning(right, numbers))


def same_meaning(left: Value, right: Value, numbers: dict[Value, int]) -> bool:
    """Whether attributes and operands of two values say the same, whatever their types."""
    return equal(_meaning(left, numbers), _meaning(right, numbers))


def equal(left: Any, right: Any) -> bool:
    """Whether two attributes are the same: of one type, NaN equal to itself, -0.0 not equal to 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(item, right[name]) for name, item in left.items())
    if isinstance(left, complex):
        return equal((left.real, left.imag), (right.real, right.imag))
    if isinstance(left, float):
        same_sign = math.copysign(1.0, left) == math.copysign(1.0, right)
        return bool(left == right and same_sign) or (math.isnan(left) and math.isnan(right))
    return same_constant(left, right) if isinstance(left, torch.Tensor) else bool(left == right)


def _meaning(value: Value, numbers: dict[Value, int]) -> dict[str, Any]:
    """The operands and attributes of a value, with every operand replaced by its number."""
    operands = [numbers[operand] for operand in value.operands]

    def number(leaf: Any) -> Any:
        return ("operand", operands[leaf.index]) if isinstance(leaf, Operand) else leaf

    def resolved(argument: Any) -> Any:
        return map_arguments(argument, number)

    attributes = dict(value.attributes)
    if value.op == "number":
        return {**attributes, "arguments": resolved(attributes["arguments"])}
    call = attributes.get("call")
    if not isinstance(call, Call):
        return {**attributes, "operands": operands}
    written = [(operands[place.base], _owner(call.written, place.base), _path(place.path)) for place in call.written]
    keywords = tuple((name, resolved(argument)) for name, argument in call.keywords)
    return {**attributes, "call": (call.target, resolved(call.arguments), keywords, written)}


def _owner(written: tuple[WrittenPlace, ...], base: int) -> int:
    """The first written place in the same copy."""
    return [place.base for place in written].index(base)


def _path(path: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((step.target, step.arguments, step.keywords, step.item) for step in path)


def _ends(graph: Graph, numbers: dict[Value, int]) -> Any:
    results = [(numbers[result.value], _path(result.path)) for result in graph.results]
    writes = [(numbers[write.input], _path(write.path), numbers[write.value]) for write in graph.writes]
    return results, writes
