"""Hold a planned Graph: the plans of its regions, the Graph that runs them, and the memory that all of it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.ir.graph import Graph, Value
from weft.ir.library import is_view
from weft.ir.types import TensorType, TupleType, Type
from weft.plan.form.plan import Plan
from weft.plan.library_plan import LibraryPlan, LibraryStep
from weft.plan.regions.region import NATIVE, Region, size_of


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
    """A lifted graph with one value for each region, its plan, and those of its regions.

    `clocked` are the seconds that its kernels and that PyTorch's operators take, where the clock has compared them.
    """

    compiled: Graph
    library: LibraryPlan
    regions: tuple[PlannedRegion, ...]
    clocked: tuple[float, float] | None = None

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

    def _made(self, step: LibraryStep) -> int:
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
