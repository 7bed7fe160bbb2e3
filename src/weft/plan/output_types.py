"""Outputs of regions, and how kernels lay them out -> the types of the values that hand them out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from weft.ir.graph import Graph, Value, replace_operands
from weft.ir.types import TensorType, TupleType
from weft.plan.fuse.assembly import declared
from weft.plan.fuse.fusion import tensor_type
from weft.plan.planned import PlannedRegion
from weft.plan.regions.native_values import NATIVE
from weft.plan.regions.region import Region
from weft.plan.regions.window import is_dense


def unread(region: Region, values: Collection[Value], users: Mapping[Value, Sequence[Value]]) -> Iterator[Value]:
    """Those of some values that a region hands out, and that nothing outside reads: neither operators nor regions."""
    inside = {*region.values}
    return (
        value
        for value in region.outputs
        if value in values and is_dense(declared(tensor_type(value))) and inside.issuperset(users[value])
    )


def laid_out(value: Value, strides: tuple[int, ...]) -> TensorType:
    """The type of an output whose elements lie this far apart."""
    return replace(tensor_type(value), strides=strides)


def as_planned(compiled: Graph, regions: Sequence[PlannedRegion]) -> Graph:
    """The graph with the types that regions' outputs have; those that have others are results alone."""
    now: dict[Value, Value] = {}
    for value in compiled.values:
        (found,) = replace_operands([value], now)
        outputs = _outputs(value, regions)
        if outputs is not None and value.type != TupleType(outputs):
            found = replace(found, type=TupleType(outputs))
        elif value.op == "item" and found is not value:
            kinds = _outputs(value.operands[0], regions)
            found = found if kinds is None else replace(found, type=kinds[value.attributes["index"]])
        if found is not value:
            now[value] = found  # whoever reads it below reads this one, also where its own type is as before
    if not now:
        return compiled
    values = tuple(now.get(value, value) for value in compiled.values)
    results = tuple(replace(result, value=now.get(result.value, result.value)) for result in compiled.results)
    writes = tuple(replace(write, value=now.get(write.value, write.value)) for write in compiled.writes)
    return replace(compiled, values=values, results=results, writes=writes)


def _outputs(value: Value, regions: Sequence[PlannedRegion]) -> tuple[TensorType, ...] | None:
    return regions[value.attributes["region"]].outputs if value.op == NATIVE else None
