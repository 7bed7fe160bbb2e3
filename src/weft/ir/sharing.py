"""A value -> the operands whose memory it may share: what limits which values may stand for which."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir import library
from weft.ir.calls import Call
from weft.ir.graph import Graph, Value

SHARING_OPS = frozenset({"reshape", "permute", "expand", "slice", "cast", "item"})
"""Ops whose result may be computed as a view of an operand, or as the operand itself."""


def sources(value: Value) -> tuple[Value, ...]:
    """The operands whose memory a value may share."""
    if value.op == "library":
        return () if library.is_fresh(value.attributes["call"].target) else value.operands
    if value.op not in SHARING_OPS:
        return ()
    if value.op == "item":  # the results of one operator are separate, unless they are views
        return value.operands if sources(value.operands[0]) else ()
    return value.operands


def looks_into_memory(target: str) -> bool:
    """Whether an operator counts from the start of memory, and not from the first element."""
    return target.startswith("aten.as_strided")


def looked_into(graph: Graph) -> Iterator[Value]:
    """The values whose memory as_strided looks into."""
    for value in graph.values:
        call: Call | None = value.attributes.get("call")
        if call is None:
            continue
        if looks_into_memory(call.target):
            yield from value.operands
        for place in call.written:
            if any(looks_into_memory(step.target) for step in place.path):
                yield value.operands[place.base]
    for result in graph.results:
        if any(looks_into_memory(step.target) for step in result.path):
            yield result.value
