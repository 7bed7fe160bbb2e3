"""A lifted Graph -> its regions planned one by one, the Graph that runs them, and the memory that all of it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch

from weft.ir.graph import Graph, Value, replace_operands
from weft.ir.library import is_view
from weft.ir.types import TensorType, TupleType, Type
from weft.plan.assembly import declared
from weft.plan.fuse import fuse
from weft.plan.fusion import tensor_type
from weft.plan.in_place import write_in_place
from weft.plan.lanes import schedule
from weft.plan.library_plan import LibraryPlan, Step, plan_library
from weft.plan.machine_model import MachineModel
from weft.plan.memory import place
from weft.plan.memory_outputs import borrow_outputs
from weft.plan.merge_loops import merge_loops
from weft.plan.native_values import NATIVE, with_regions
from weft.plan.plan import Plan
from weft.plan.region import Region, find_regions
from weft.plan.replaceable import replaceable
from weft.plan.sink import size_of
from weft.plan.window import is_dense
from weft.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRegion:
    """A region with its plan, the constants that its kernels read, and which outputs take which inputs' memory.

    `outputs` are the types of the outputs as they are laid out.
    """

    region: Region
    plan: Plan
    constants: tuple[torch.Tensor, ...]
    replaced: dict[int, int]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedGraph:
    """A lifted graph with one value for each region, its plan, and those of its regions."""

    compiled: Graph
    library: LibraryPlan
    regions: tuple[PlannedRegion, ...]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a call needs at once beside its inputs: what steps hand on and out, and their arenas."""
        made = {step.value: self._made(step) for step in self.library.steps}
        held = peak = 0
        for step in self.library.steps:
            held += made[step.value]
            peak = max(peak, held + self._inside(step.value))
            held -= sum(made.get(value, 0) for value in step.dying)
        return peak

    def _made(self, step: Step) -> int:
        """The bytes of new memory that stay when a step is done; a region's outputs are counted as they are named."""
        value = step.value
        if value.op == "item" and (region := self._region(value.operands[0])) is not None:
            return 0 if value.attributes["index"] in region.replaced else size_of(value)
        if value.op != "library" or is_view(value.attributes["call"].target):
            return 0
        return _bytes(value.type)

    def _inside(self, value: Value) -> int:
        """The bytes that a region needs while it runs: its arena, and what it hands out in new memory."""
        region = self._region(value)
        if region is None:
            return 0
        outputs = (size_of(kind) for index, kind in enumerate(region.region.outputs) if index not in region.replaced)
        return region.plan.arena_bytes + sum(outputs)

    def _region(self, value: Value) -> PlannedRegion | None:
        return self.regions[value.attributes["region"]] if value.op == NATIVE else None


def _bytes(kind: Type) -> int:
    items: Sequence[Type] = kind.items if isinstance(kind, TupleType) else (kind,)
    return sum(item.size * item.dtype.itemsize for item in items if isinstance(item, TensorType))


@dataclass(frozen=True, slots=True, eq=False)
class Planner:
    """Plans graphs for a machine: `weights` are their inputs that change rarely; see also Region.loose."""

    target: Target
    lanes: int
    model: MachineModel
    weights: frozenset[Value]
    loose: frozenset[Value] = frozenset()

    def plan(self, lifted: Graph, stored: frozenset[Value] = frozenset(), *, in_order_for: float = 0.0) -> PlannedGraph:
        """Plan a lifted graph: its regions, and the order of these and of PyTorch's operators; see Region.stored.

        Lanes take little out of its turn, for the memory, where that takes at most this part more time.
        """
        users = lifted.users()
        found = [
            replace(region, stored=stored, loose=frozenset(_unread(region, self.loose, users)))
            for region in find_regions(lifted, self.weights)
        ]
        compiled = with_regions(lifted, found)
        regions = []
        for region, pairs in zip(found, replaceable(lifted, compiled, found), strict=True):
            fused = fuse(region, self.target)
            plan, replaced = write_in_place(merge_loops(fused.plan, self.target), pairs, self.target)
            # A copy that is made before its turn, because a lane has time, takes the memory that it was to save.
            slower = inf if stored else in_order_for
            scheduled = schedule(plan, self.lanes, self.model, in_order_for=slower)
            placed = place(borrow_outputs(scheduled))
            outputs = tuple(map(_laid_out, region.outputs, fused.strides))
            regions.append(PlannedRegion(region, placed, fused.constants, dict(replaced), outputs))
        compiled = _as_planned(compiled, regions)
        return PlannedGraph(compiled, plan_library(compiled), tuple(regions))


def _unread(region: Region, values: Collection[Value], users: Mapping[Value, Sequence[Value]]) -> Iterator[Value]:
    """Those of some values that a region hands out, and that nothing outside reads: neither operators nor regions."""
    inside = {*region.values}
    return (
        value
        for value in region.outputs
        if value in values and is_dense(declared(tensor_type(value))) and inside.issuperset(users[value])
    )


def _laid_out(value: Value, strides: tuple[int, ...]) -> TensorType:
    return replace(tensor_type(value), strides=strides)


def _as_planned(compiled: Graph, regions: Sequence[PlannedRegion]) -> Graph:
    """The graph with the types that regions' outputs have; those that have others are results alone."""
    now: dict[Value, Value] = {}
    for value in compiled.values:
        outputs = _outputs(value, regions)
        if outputs is not None and value.type != TupleType(outputs):
            now[value] = replace(value, type=TupleType(outputs))
        elif value.op == "item" and value.operands[0] in now:
            kind = _outputs(value.operands[0], regions) or ()
            now[value] = replace(value, type=kind[value.attributes["index"]])
    if not now:
        return compiled
    values = replace_operands([now.get(value, value) for value in compiled.values], now)
    replaced = dict(zip(compiled.values, values, strict=True))
    results = tuple(replace(result, value=replaced.get(result.value, result.value)) for result in compiled.results)
    writes = tuple(replace(write, value=replaced.get(write.value, write.value)) for write in compiled.writes)
    return replace(compiled, values=values, results=results, writes=writes)


def _outputs(value: Value, regions: Sequence[PlannedRegion]) -> tuple[TensorType, ...] | None:
    return regions[value.attributes["region"]].outputs if value.op == NATIVE else None
