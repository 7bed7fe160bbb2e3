"""Check that rules of lifting keep the sizes that vary: lift a Graph at other largest sizes too, and compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from weft.ir.at_sizes import with_sizes
from weft.ir.extents import Extent
from weft.ir.graph import Graph, LiftedGraph, Value
from weft.ir.library import Call, ViewStep, WrittenPlace
from weft.ir.types import TensorType, TupleType
from weft.passes.within import UnboundedError
from weft.trace.lift.lift import lift_by_call


def resized(graph: Graph, *, smaller: bool = False) -> Graph:
    """The same Graph with other largest sizes, which are `smaller` where none can be larger."""
    sizes: dict[Value, int] = {}

    def note(size: Extent) -> Any:
        for atom in size.expression.atoms():
            apart, most = 6 + 2 * len(sizes), size.today
            less = next((most - step for step in (apart, 1 + len(sizes)) if most - step > 1), most + apart)
            sizes.setdefault(atom, less if smaller else most + apart)
        return size

    with_sizes(graph, note)  # also those that calls alone have
    return with_sizes(graph, lambda size: Extent(size.expression.value(sizes.__getitem__), size.expression))


def calls_of_lost_sizes(lifted: LiftedGraph, other: LiftedGraph) -> set[Value]:
    """The calls whose small ops depend on the largest sizes, and are not known to: their rules have lost them."""
    pairs = zip(lifted.values_of.items(), other.values_of.values(), strict=True)
    lost = [
        value
        for (value, ours), theirs in pairs
        if _meanings(ours) != _meanings(theirs) or any(_shrinks(one.type) for one in ours)
    ]
    return {value.operands[0] if value.op == "item" else value for value in lost}


def _shrinks(kind: Any) -> bool:
    """Whether a size of a type gets smaller as others grow: where these are largest, there is no room for it."""
    sizes = kind.shape if isinstance(kind, TensorType) else ()
    return any(isinstance(size, Extent) and size.expression.shrinks for size in sizes)


def _meanings(values: tuple[Value, ...]) -> list[Any]:
    return [(value.op, _meaning((value.type, value.attributes))) for value in values]


def _meaning(thing: Any) -> Any:
    """What a type, or an attribute, is for all sizes."""
    if isinstance(thing, Extent):
        return str(thing.expression)
    if isinstance(thing, tuple):
        return tuple(map(_meaning, thing))
    if isinstance(thing, Mapping):
        return {name: _meaning(entry) for name, entry in thing.items()}
    if isinstance(thing, TensorType):
        return (thing.dtype, _meaning(thing.shape))
    if isinstance(thing, TupleType):
        return _meaning(thing.items)
    if isinstance(thing, (Call, ViewStep, WrittenPlace)):
        return tuple(_meaning(getattr(thing, part.name)) for part in fields(thing))
    return (thing.shape, thing.tolist()) if isinstance(thing, torch.Tensor) else thing


def lifted_for_all_sizes(graph: Graph, *, none_larger: bool = False) -> LiftedGraph:
    """Lift a Graph whose sizes vary, but for calls whose rules rely on what the largest sizes are.

    With `none_larger`, a size that is found out is within what is there, and cannot be larger.
    """
    lifted = lift_by_call(graph)
    other = resized(graph, smaller=none_larger)
    lost = calls_of_lost_sizes(lifted, lift_by_call(other))
    if not lost:
        return lifted
    pairs = zip(graph.values, other.values, strict=True)
    again = lift_by_call(graph, lost), lift_by_call(other, {theirs for ours, theirs in pairs if ours in lost})
    if lost := calls_of_lost_sizes(*again):
        names = sorted({call.attributes["call"].target if "call" in call.attributes else call.op for call in lost})
        raise UnboundedError(f"{', '.join(names)} depends on sizes in a way that its rule does not say")
    return again[0]
