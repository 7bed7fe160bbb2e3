"""A lifted Graph -> the same Graph with each region as one value, so that library calls and regions share one plan.

The value of a region has the op `native`, its region as attribute, the region's inputs as operands and the region's
outputs as a tuple. It exists between fusing and planning only; no printed or saved Graph holds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from weft.errors import InternalError
from weft.ir.graph import Graph, Value
from weft.ir.types import NothingType, TupleType
from weft.plan.regions.region import Region, keeps_order

NATIVE = "native"


def with_regions(graph: Graph, regions: Sequence[Region]) -> Graph:
    """Put one value in the place of each region's values."""
    inside = {
        value: number for number, region in enumerate(regions) for value in region.values if value.op != "constant"
    }
    arrangement = _Arrangement(graph, regions)
    waiting = list(graph.values)
    while waiting:
        left = arrangement.place_ready(arrangement.place_checks(waiting, inside), inside)
        if len(left) == len(waiting):
            raise InternalError("regions and library calls wait for each other", why="a region was cut wrongly")
        waiting = left
    now = arrangement.now
    results = tuple(replace(result, value=now.get(result.value, result.value)) for result in graph.results)
    writes = tuple(replace(write, value=now.get(write.value, write.value)) for write in graph.writes)
    # A region holds the constants that it reads: outside only those stay that somebody there reads.
    read = {operand for value in arrangement.values for operand in value.operands}
    read.update(result.value for result in results)
    read.update(write.value for write in writes)
    values = tuple(value for value in arrangement.values if value.op != "constant" or value in read)
    return replace(graph, values=values, results=results, writes=writes)


def _is_check(value: Value) -> bool:
    return value.op == "library" and isinstance(value.type, NothingType)


class _Arrangement:
    """Values in an order in which they can be computed; library calls keep theirs."""

    def __init__(self, graph: Graph, regions: Sequence[Region]) -> None:
        self.regions = regions
        self.now: dict[Value, Value] = {}
        self.values: list[Value] = []
        self.known = set(graph.inputs)
        self.placed: set[int] = set()

    def place_checks(self, waiting: list[Value], inside: dict[Value, int]) -> list[Value]:
        """Place the checks of data that can run now, with the calls before them: before any kernel that could wait."""
        checks = [position for position, value in enumerate(waiting) if _is_check(value)]
        left: list[Value] = []
        blocked = False
        for position, value in enumerate(waiting):
            ready = self.known.issuperset(value.operands) and not (blocked and keeps_order(value))
            if value in inside or not ready or not checks or position > checks[-1]:
                blocked = blocked or (value not in inside and keeps_order(value))
                left.append(value)
            else:
                self._place(value)
        return left

    def place_ready(self, waiting: list[Value], inside: dict[Value, int]) -> list[Value]:
        """Place what has all its operands; gives what is left."""
        left: list[Value] = []
        blocked = False
        for value in waiting:
            number = inside.get(value)
            if number is not None:
                self._place_region(number)
            if number is None:
                ready = self.known.issuperset(value.operands) and not (blocked and keeps_order(value))
                blocked = blocked or (not ready and keeps_order(value))
                if ready:
                    self._place(value)
                else:
                    left.append(value)
            elif number not in self.placed:
                left.append(value)
        return left

    def _place(self, value: Value) -> None:
        operands = tuple(self.now.get(operand, operand) for operand in value.operands)
        current = value if operands == value.operands else replace(value, operands=operands)
        self.now[value] = current
        self.values.append(current)
        self.known.add(value)

    def _place_region(self, number: int) -> None:
        region = self.regions[number]
        if number in self.placed or not self.known.issuperset(region.inputs):
            return
        self.placed.add(number)
        operands = tuple(self.now.get(operand, operand) for operand in region.inputs)
        kinds = tuple(output.type for output in region.outputs)
        whole = Value(NATIVE, operands, TupleType(kinds), MappingProxyType({"region": number}), region.outputs[0].place)
        self.values.append(whole)
        for index, output in enumerate(region.outputs):
            item = Value("item", (whole,), output.type, MappingProxyType({"index": index}), output.place)
            self.values.append(item)
            self.now[output] = item
        self.known.update(region.values)
