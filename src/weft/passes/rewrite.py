"""A Graph and a function of one value -> the Graph rebuilt from its inputs on, each value changed as the function says.

What every pass needs is here once: operands follow their replacements, a new value takes over the user's line and the
name of the one it replaces, values with effects stay as they are, and no replacement changes which results share
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.errors import InternalError
from weft.ir.graph import Graph, Result, Value, Write
from weft.passes.effects import has_effect
from weft.passes.memory import Groups

Change = Callable[[Value, Groups], Value]
"""Gives the value to use instead: the same, one met before, or a new one (its new operands are added before it)."""


def rebuild(graph: Graph, change: Change) -> Graph:
    """Offer every value without effects to `change`, operands first, until nothing changes; the Graph itself if so."""
    groups = Groups(graph)
    now: dict[Value, Value] = {value: value for value in graph.inputs}
    kept: dict[Value, None] = dict.fromkeys(graph.inputs)
    for value in graph.values:
        current = with_operands(value, tuple(now[operand] for operand in value.operands))
        if current is not value:
            groups.rename(value, current)
        if not has_effect(value):
            current = changed(current, change, groups, kept)
        keep(current, kept)
        now[value] = current
    if all(now[value] is value for value in graph.values):
        return graph
    return replace(
        graph,
        values=tuple(kept)[len(graph.inputs) :],
        results=tuple(Result(now[result.value], result.path) for result in graph.results),
        writes=tuple(Write(write.input, now[write.value], write.path) for write in graph.writes),
    )


def changed(value: Value, change: Change, groups: Groups, kept: dict[Value, None]) -> Value:
    """Change one value, and what it became, until it stays or is one already there."""
    while (new := change(value, groups)) is not value:
        if new.type != value.type:
            raise InternalError(f"a pass replaces {value!r} by {new!r}, which is of another type")
        if not (is_old := new in kept):
            new = replace(new, place=new.place or value.place, name=value.name)
        if not groups.may_replace(value, new):
            break
        groups.replace(value, new)
        value = new
        if is_old:
            break
    return value


def keep(value: Value, kept: dict[Value, None]) -> None:
    """Add a value to the Graph, after those of its operands that are new."""
    if value in kept:
        return
    for operand in value.operands:
        keep(operand, kept)
    kept[value] = None


def with_operands(value: Value, operands: tuple[Value, ...]) -> Value:
    """The same operator applied to these operands."""
    if all(new is old for new, old in zip(operands, value.operands, strict=True)):
        return value
    return Value(value.op, operands, value.type, value.attributes, value.place, value.name)
