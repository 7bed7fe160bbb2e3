"""A Graph cut into regions -> which of a region's outputs may take the memory of the inputs that they are written into.

A program's writes happen when all is computed, so that a call that fails changes nothing. A region may do its writes
itself where nothing comes after it that can fail, or that reads what the inputs held before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.ir.graph import Graph, Value
from weft.plan.regions.indices import limit_of
from weft.plan.regions.native_values import NATIVE
from weft.plan.regions.region import Region

# What computes, whatever the data: only calls of operators, and what has an index, can fail.
SAFE = frozenset(
    {
        "item",
        "constant",
        "convolution_input_gradient",
        "convolution_weight_gradient",
        "max_pool_gradient",
        "average_pool_gradient",
    }
)
Pairs = tuple[tuple[int, int], ...]


def replaceable(lifted: Graph, compiled: Graph, regions: Sequence[Region]) -> list[Pairs]:
    """For each region, pairs of an output and an input by index; `compiled` is the graph with a value a region."""
    wanted = Counter(lifted.roots())
    steps = {
        value.attributes["region"]: position for position, value in enumerate(compiled.values) if value.op == NATIVE
    }
    found: list[Pairs] = []
    for number, region in enumerate(regions):
        # A region's own indices are checked before it writes anything.
        after = compiled.values[steps[number] + 1 :]
        if any(_can_fail(value, regions) for value in after):
            found.append(())
            continue
        read_later = {operand for value in after for operand in value.operands}
        found.append(
            tuple(
                (region.outputs.index(write.value), region.inputs.index(write.input))
                for write in lifted.writes
                if write.value in region.outputs
                and write.input in region.inputs
                and not write.path
                and wanted[write.value] == 1
                and write.value.type == write.input.type
                and write.input not in read_later
                and _is_own(write.input, lifted)
            )
        )
    return found


def _can_fail(value: Value, regions: Sequence[Region]) -> bool:
    if value.op == NATIVE:
        return any(limit_of(inside) is not None for inside in regions[value.attributes["region"]].values)
    return value.op not in SAFE


def _is_own(value: Value, graph: Graph) -> bool:
    """Whether an input is written once, and not handed out as it was."""
    return sum(write.input is value for write in graph.writes) == 1 and all(
        value is not write.value for write in graph.writes
    )
