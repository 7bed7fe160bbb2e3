"""Check that rules of lifting keep the sizes that vary: lift a Graph at other largest sizes too, and compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from weft.ir.at_sizes import with_sizes
from weft.ir.calls import Call
from weft.ir.extents import Extent
from weft.ir.graph import Graph, Value
from weft.ir.lifted import LiftedGraph
from weft.ir.types import TensorType, TupleType
from weft.passes.within import UnboundedError
from weft.trace.lift.lift import lift_by_call


def resized(graph: Graph) -> Graph:
    """The same Graph with other largest sizes."""
    sizes: dict[Value, int] = {}
    for value in (*graph.inputs, *graph.values):
        for size in value.type.shape if isinstance(value.type, TensorType) else ():
            if isinstance(size, Extent):
                for atom in size.expression.atoms():
                    sizes.setdefault(atom, size.today + 6 + 2 * len(sizes))
    return with_sizes(graph, lambda size: Extent(size.expression.value(sizes.__getitem__), size.expression))


def calls_of_lost_sizes(lifted: LiftedGraph, other: LiftedGraph) -> set[Value]:
    """The calls whose small ops depend on the largest sizes, and are not known to: their rules have lost them."""
    pairs = zip(lifted.values_of.items(), other.values_of.values(), strict=True)
    lost = [value for (value, ours), theirs in pairs if _meanings(ours) != _meanings(theirs)]
    return {value.operands[0] if value.op == "item" else value for value in lost}


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
    if isinstance(thing, Call):
        return (thing.target, _meaning(thing.arguments), _meaning(thing.keywords), thing.written)
    return (thing.shape, thing.tolist()) if isinstance(thing, torch.Tensor) else thing


def lifted_for_all_sizes(graph: Graph) -> LiftedGraph:
    """Lift a Graph whose sizes vary, but for calls whose rules rely on what the largest sizes are."""
    lifted = lift_by_call(graph)
    other = resized(graph)
    lost = calls_of_lost_sizes(lifted, lift_by_call(other))
    if not lost:
        return lifted
    pairs = zip(graph.values, other.values, strict=True)
    again = lift_by_call(graph, lost), lift_by_call(other, {theirs for ours, theirs in pairs if ours in lost})
    if lost := calls_of_lost_sizes(*again):
        names = sorted({call.attributes["call"].target if "call" in call.attributes else call.op for call in lost})
        raise UnboundedError(f"{', '.join(names)} depends on sizes in a way that its rule does not say")
    return again[0]
