"""Plan a lifted Graph: fuse its regions into kernels, and choose the lanes and the memory of these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import torch

from weft.ir.graph import Graph, Value, replace_operands
from weft.ir.types import TensorType, TupleType
from weft.plan.extents.dense import Digits, digits_of
from weft.plan.extents.handed_on import HandedOn
from weft.plan.extents.needed import VaryingBuffers, with_needed_tiles
from weft.plan.extents.parts import VaryingSizes, parts_of
from weft.plan.form.dependencies import Footprints
from weft.plan.form.plan import BufferKind, Plan
from weft.plan.fuse.fuse import Fused, fuse
from weft.plan.fuse.fusion import declared, tensor_type
from weft.plan.fuse.merge_loops import merge_loops
from weft.plan.library_plan import plan_library
from weft.plan.memory.arena import borrow_outputs, early_order, place, with_waits
from weft.plan.memory.in_place import Pairs, replaceable, write_in_place, write_over_operands
from weft.plan.planned import PlannedGraph, PlannedRegion
from weft.plan.regions.lazy import is_dense
from weft.plan.regions.region import NATIVE, Region, find_regions, with_regions
from weft.plan.schedule.cost import MachineModel
from weft.plan.schedule.lanes import IN_ORDER, IN_TURN, LanePace, Scheduled, Scheduling, frugal_order
from weft.target import Target


def unread(region: Region, values: Collection[Value], users: Mapping[Value, Sequence[Value]]) -> Iterator[Value]:
    """Those of some values that a region hands out, and that nothing outside reads: neither operators nor regions."""
    inside = {*region.values}
    return (
        value
        for value in region.outputs
        if value in values and is_dense(declared(tensor_type(value))) and inside.issuperset(users[value])
    )


KINDS: tuple[BufferKind, ...] = ("input", "output", "constant")


def _varying_buffers(region: Region, fused: Fused, handed_on: HandedOn) -> VaryingBuffers:
    """What varies of the buffers of a region's plan."""
    varying = handed_on.varying
    numbers = {kind: {buffer.index: number for number, buffer in fused.plan.of_kind(kind)} for kind in KINDS}
    inputs, outputs = numbers["input"], numbers["output"]
    sizes = {
        inputs[index]: varying.holders[value] for index, value in enumerate(region.inputs) if value in varying.holders
    }
    made = enumerate(zip(region.outputs, fused.strides, strict=True))
    wanted = {outputs[index]: handed_on.wanted(region, value, strides) for index, (value, strides) in made}
    given = {}
    for index, value in enumerate(region.inputs):
        if value in varying.inputs:
            kind = tensor_type(value)
            given[inputs[index]] = parts_of(
                [step * kind.dtype.itemsize for step in kind.strides], varying.inputs[value]
            )
    read = {index for index, value in enumerate(region.inputs) if handed_on.is_handed_on(value) and index in inputs}
    results = {index for index, value in enumerate(region.outputs) if handed_on.is_result_alone(region, value)}
    constants = ((number, ramp_of(fused.constants[index])) for index, number in numbers["constant"].items())
    return VaryingBuffers(
        sizes,
        {number: parts for number, parts in wanted.items() if parts},
        frozenset(outputs[index] for index in results),
        given,
        frozenset(inputs[index] for index in read),
        {number: ramp for number, ramp in constants if ramp is not None},
        _forms(region, fused, handed_on),
    )


def _forms(region: Region, fused: Fused, handed_on: HandedOn) -> dict[int, Digits]:
    """How tensors lie that only callers and a region touch, as far as they may be dense, by buffers' numbers."""
    varying, found = handed_on.varying, dict[int, Digits]()
    for number, buffer in enumerate(fused.plan.buffers):
        if buffer.kind == "input":
            value = region.inputs[buffer.index]
            strides, within = tensor_type(value).strides, varying.inputs.get(value)
            is_alone = handed_on.is_read_alone(region, value)
        elif buffer.kind == "output":
            value, strides = region.outputs[buffer.index], fused.strides[buffer.index]
            within, is_alone = varying.within.get(value), handed_on.is_result_alone(region, value)
        else:
            continue
        own = varying.dense.get(value)
        if own is not None and within is not None and is_alone:
            item = tensor_type(value).dtype.itemsize
            digits = digits_of([step * item for step in strides], own, within, item)
            if digits is not None:
                found[number] = digits
    return found


def ramp_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Give how often each of the numbers 0, 1, 2 and so on comes in a row, and how many there are before 0 again."""
    if tensor.dtype not in (torch.int32, torch.int64) or not tensor.numel():
        return None
    numbers = tensor.flatten()
    (rising,) = numbers.nonzero(as_tuple=True)
    times, period = (int(rising[0]) if len(rising) else 1), int(numbers.max()) + 1
    if not times or period < 1:
        return None
    expected = torch.arange(numbers.numel(), dtype=tensor.dtype) // times % period
    return (times, period) if torch.equal(numbers, expected) else None


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


# For so much more memory than was asked for, lanes are held back however long it takes; for less only if that takes at
# most this part more time: it costs much where lanes overlap, as the layers of an LSTM do.
NEGLIGIBLE_BYTES = 1 << 21
# For so little no other way is looked for: each takes as long as the first did.
LEAST_BYTES = 1 << 17
NEGLIGIBLE_PART = 0.1
SLACK = 0.01
ENOUGH = 1.002  # of the bytes asked for: how sizes are rounded does not count


@dataclass(frozen=True, slots=True)
class Thrift:
    """What is done for the memory of a program: a pace of its lanes, another order of its calls, and waits.

    `slack` is the part of a program's time that a lane may wait so that two intermediates can share bytes; without it
    nothing waits for that.
    """

    pace: LanePace | None = None
    ordered: bool = False
    slack: float | None = None


SPENDING = Thrift()
FRUGAL = Thrift(IN_ORDER)
# What costs least time first.
THRIFTS = (
    Thrift(slack=SLACK),
    Thrift(IN_TURN, ordered=True),
    Thrift(IN_TURN, ordered=True, slack=SLACK),
    Thrift(IN_ORDER, ordered=True, slack=SLACK),
)


class DraftRegion:
    """A region fused into kernels, and what is known of how these can be given to lanes."""

    def __init__(self, region: Region, fused: Fused, replaced: dict[int, int], planner: Planner) -> None:
        self._region = region
        self._fused = fused
        self._replaced = replaced
        self._planner = planner
        self._scheduling: dict[bool, Scheduling] = {}
        self._scheduled: dict[tuple[bool, LanePace | None], Scheduled] = {}

    @cached_property
    def _footprints(self) -> Footprints:
        return Footprints(self._fused.plan)

    @property
    def kernels(self) -> Plan:
        """The plan before its calls are ordered."""
        return self._fused.plan

    def timed(self, thrift: Thrift) -> tuple[PlannedRegion, float]:
        """Give the kernels lanes and the intermediates places; tells also how many seconds that takes by estimate."""
        key = thrift.ordered, thrift.pace
        if key not in self._scheduled:
            self._scheduled[key] = self._in_order(thrift.ordered).schedule(thrift.pace, tried=thrift == SPENDING)
        scheduled = self._scheduled[key]
        plan = _placed(scheduled, thrift.slack)
        outputs = tuple(map(laid_out, self._region.outputs, self._fused.strides))
        planned = PlannedRegion(self._region, plan, self._fused.constants, self._replaced, outputs)
        return planned, scheduled.seconds

    def _in_order(self, ordered: bool) -> Scheduling:
        if ordered not in self._scheduling:
            found = self._footprints
            if ordered:
                found = Footprints(frugal_order(found), like=found)
            self._scheduling[ordered] = Scheduling(found.plan, self._planner.lanes, self._planner.model, found)
        return self._scheduling[ordered]


def _placed(scheduled: Scheduled, slack: float | None) -> Plan:
    plan = scheduled.plan
    if slack is None:
        return place(borrow_outputs(plan))
    early = early_order(plan, scheduled.spans, slack * scheduled.seconds)
    return with_waits(plan, place(borrow_outputs(plan, early), early))


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A graph with one value for each region, and its regions before lanes and places in memory."""

    compiled: Graph
    regions: tuple[DraftRegion, ...]

    def kernels(self) -> list[Plan]:
        """Give the plan of each region before its calls are ordered: whatever their order is, the kernels are these."""
        return [region.kernels for region in self.regions]

    def planned(self, thrift: Thrift = SPENDING) -> PlannedGraph:
        """Give the kernels lanes and the intermediates places."""
        return self.timed(thrift)[0]

    def timed(self, thrift: Thrift = SPENDING) -> tuple[PlannedGraph, float]:
        """The same, with how many seconds the kernels take by estimate."""
        found = [region.timed(thrift) for region in self.regions]
        regions = tuple(region for region, _ in found)
        compiled = as_planned(self.compiled, regions)
        planned = PlannedGraph(compiled, plan_library(compiled), regions)
        return planned, sum(seconds for _, seconds in found)

    def within(self, peak_bytes: int) -> PlannedGraph:
        """Plan what is done soonest with so many bytes at its peak, or else with as few as are found.

        With 0 it is not known how many would do: then lanes are not held back for long. Of sizes that vary a peak is
        that of the largest, and what smaller ones do not touch takes no memory.
        """
        best, fastest = self.timed()
        more = best.peak_bytes - peak_bytes
        if more <= (LEAST_BYTES if peak_bytes else NEGLIGIBLE_BYTES):
            return best
        is_sure = peak_bytes > 0 and more > NEGLIGIBLE_BYTES
        latest = inf if is_sure else fastest * (1 + NEGLIGIBLE_PART)
        for thrift in THRIFTS:
            if best.peak_bytes <= ENOUGH * peak_bytes:
                break
            found, seconds = self.timed(thrift)
            if seconds <= latest and found.peak_bytes < best.peak_bytes:
                best = found
        return best


@dataclass(frozen=True, slots=True, eq=False)
class Planner:
    """Plans graphs for a machine: `weights` are their inputs that change rarely; see also Region.loose."""

    target: Target
    lanes: int
    model: MachineModel
    weights: frozenset[Value]
    loose: frozenset[Value] = frozenset()
    varying: VaryingSizes | None = None

    def draft(self, lifted: Graph, stored: Iterable[Value] = ()) -> Draft:
        """Fuse a lifted graph into kernels: its regions, and what PyTorch's operators do; see Region.stored."""
        users = lifted.users()
        found = [
            replace(region, stored=frozenset(stored), loose=frozenset(unread(region, self.loose, users)))
            for region in find_regions(lifted, self.weights)
        ]
        if self.varying is not None:
            holders = self.varying.holders
            found = [replace(one, inputs=tuple(dict.fromkeys((*one.inputs, *holders)))) for one in found]
        compiled = with_regions(lifted, found)
        # What varies in size was put into memory of the program's own, which is as large as it can be.
        owned = () if self.varying is None else self.varying.inputs.keys()
        handed_on = None if self.varying is None else HandedOn(lifted, found, self.varying)
        pairs = zip(found, replaceable(lifted, compiled, found, owned), strict=True)
        regions = [self._region(region, given, handed_on) for region, given in reversed([*pairs])]
        return Draft(compiled, tuple(reversed(regions)))

    def _region(self, region: Region, given: Pairs, handed_on: HandedOn | None) -> DraftRegion:
        """Fuse a region into kernels; those behind it have been."""
        fused = fuse(region, self.target, varies=handed_on is not None)
        plan, replaced = write_in_place(merge_loops(fused.plan, self.target), given, self.target)
        plan = write_over_operands(plan, self.lanes, self.target)
        if handed_on is not None:
            plan, needed = with_needed_tiles(plan, _varying_buffers(region, fused, handed_on))
            for number, parts in needed.items():
                handed_on.note(region.inputs[plan.buffers[number].index], parts)
        return DraftRegion(region, replace(fused, plan=plan), dict(replaced), self)
