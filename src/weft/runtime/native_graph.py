"""A Graph -> something that runs it: its regions in machine code, the rest by PyTorch's operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from time import perf_counter
from typing import Any

import torch

from weft.codegen.library import LibraryExecutable
from weft.config import config
from weft.devices import cpu_count
from weft.errors import ExecutionError
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType, Type
from weft.passes.pipeline import run_pipeline
from weft.plan.draft import FRUGAL, Planner
from weft.plan.library_plan import plan_library
from weft.plan.planned import PlannedGraph, PlannedRegion
from weft.plan.regions.native_values import NATIVE
from weft.plan.regions.recompute import recompute
from weft.plan.regions.region import Region
from weft.runtime.border import PYTORCHS, Border, loose_in
from weft.runtime.clocked import ClockedExecutable, Span
from weft.runtime.cuda_capture import captured
from weft.runtime.executable import NativeExecutable
from weft.runtime.kept_memory import keep_freed_memory
from weft.runtime.kept_plans import Machine, Question, kept_plan
from weft.runtime.kernels_ahead import Begun, KernelsAhead
from weft.runtime.measure import machine_model
from weft.runtime.new_tensors import NewTensors, OutputType
from weft.runtime.refused import IN_PLACE, RefusedError, run_as_operators
from weft.runtime.whole_call import BoundProgram
from weft.target import host_target
from weft.trace.lift.lift import lift
from weft.underway import underway

MOST_LIFTED = 6  # values that an operator becomes, on average, where what it hands on says what memory it needs


class NativeRegion:
    """A region in machine code: takes its inputs, gives its outputs, in new memory or in that of inputs."""

    def __init__(self, planned: PlannedRegion, inputs_checked: Collection[int], begun: Begun | None = None) -> None:
        region = planned.region
        self.plan = planned.plan
        lasting = [index for index, value in enumerate(region.inputs) if value in region.weights]
        self._execute = NativeExecutable(self.plan, host_target(), planned.constants, lasting, begun=begun)
        self._outputs = tuple(map(_output, planned.outputs))
        self._sources = tuple(planned.replaced.get(index) for index in range(len(self._outputs)))
        self._new = NewTensors(
            [kind for kind, source in zip(self._outputs, self._sources, strict=True) if source is None]
        )
        self._writes = any(source is not None for source in self._sources)
        # Operators may lay a result out otherwise than their shape rules say; the kernels rely on what was said.
        self._checked = tuple((index, _output(region.inputs[index].type)) for index in inputs_checked)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the region."""
        given = list(inputs)
        for index, kind in self._checked:
            if given[index].stride() != kind.strides or given[index].shape != kind.shape:
                given[index] = _laid_out(given[index], kind)
        outputs = self._new()
        if self._writes:
            new = iter(outputs)
            outputs = tuple([next(new) if source is None else given[source] for source in self._sources])
        if not self._execute(given, outputs):
            raise RefusedError
        if self._writes:
            IN_PLACE.regions += 1
        return outputs

    def pack_ahead(self, known: Mapping[int, torch.Tensor]) -> None:
        """Let another core begin to pack weights for a call that comes soon, as far as its inputs are known."""
        copied = {index for index, _ in self._checked}  # perhaps
        self._execute.pack_ahead({index: tensor for index, tensor in known.items() if index not in copied})

    def clocked(self) -> ClockedRegion:
        """Give the same region with a clock."""
        return ClockedRegion(self)

    def bound(self, positions: Sequence[int | None]) -> tuple[BoundProgram, tuple[OutputType, ...]] | None:
        """Give what runs the region as it is bound now, if that makes new tensors of inputs that are taken as they are.

        `positions` are where a call's arguments are the region's inputs; None for what lasts.
        """
        if self._checked or self._writes:
            return None
        given = {index: position for index, position in enumerate(positions) if position is not None}
        found = self._execute.bound(given)
        return None if found is None else (found, self._outputs)


class ClockedRegion:
    """A region that notes what its lanes did; for one thread at a time."""

    def __init__(self, region: NativeRegion) -> None:
        executable = region._execute
        self._region = copy(region)
        self._clock = ClockedExecutable(region.plan, host_target(), executable.constants, executable.lasting)
        self._region._execute = self._clock
        self.calls: list[tuple[float, float]] = []

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the region, and note when."""
        start = perf_counter()
        outputs = self._region(*inputs)
        self.calls.append((start, perf_counter()))
        return outputs

    def spans(self) -> list[Span]:
        """Give what each lane did in the last call."""
        return self._clock.spans()


class CompiledGraph:
    """Runs a graph: takes its inputs in order, gives its roots in order, each once.

    With `forward`, the values that end the forward of a step, the backward computes anew what saves memory. With
    `border`, some tensors have other strides than the graph says.
    """

    def __init__(
        self,
        graph: Graph,
        weights: frozenset[Value],
        *,
        trusted: bool = True,
        forward: Collection[Value] = (),
        border: Border = PYTORCHS,
    ) -> None:
        self._graph = graph
        self._given = border.given
        self.roots = tuple(dict.fromkeys(graph.roots()))
        self.regions: tuple[NativeRegion, ...] = ()
        planned = PlannedGraph(graph, plan_library(graph), ())
        if config().codegen == "native":
            keep_freed_memory()
            underway(f"planning {graph.name}")
            with KernelsAhead(host_target()) as ahead:
                planned = _planned(border.with_given(graph), weights, forward, border, ahead)
                underway(f"compiling {graph.name}")
                self.regions = tuple(
                    NativeRegion(
                        region, _unsure(region.region, planned.compiled, trusted=trusted), ahead.take(region.plan)
                    )
                    for region in planned.regions
                )
        compiled = planned.compiled
        self._region_inputs = tuple(one.region.inputs for one in planned.regions)
        self.peak_bytes = planned.peak_bytes
        self.executable = LibraryExecutable(planned.library, self.regions)
        position = {value: index for index, value in enumerate(self.executable.plan.outputs)}
        now = dict(zip(graph.roots(), compiled.roots(), strict=True))
        self.types = tuple(now[root].type for root in self.roots)
        order = tuple(position[now[root]] for root in self.roots)
        self._order = None if order == tuple(range(len(position))) else order
        self._alone = _only_region(compiled, graph)
        lasting = [index for index, value in enumerate(self.executable.plan.inputs) if value in weights]
        self._captured = captured(self.executable, lasting, len(self.regions))
        self._run = self.executable if self._captured is None else self._captured

    @property
    def capture(self) -> str:
        """Say whether the graph runs in a CUDA graph, and if not why; nothing of graphs on the CPU."""
        return "" if self._captured is None else self._captured.describe()

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the graph."""
        outputs: tuple[Any, ...] | None
        try:
            if self._alone is not None:
                return self.regions[0](*[inputs[index] for index in self._alone])
            outputs = self._run(inputs)
        except RefusedError:
            outputs = None
        if outputs is None:
            return run_as_operators(self._graph, self._as_declared(inputs))
        return outputs if self._order is None else tuple(outputs[index] for index in self._order)

    def pack_ahead(self, known: Mapping[Value, torch.Tensor]) -> None:
        """Let another core begin to pack weights for a call that comes soon, as far as its inputs are known."""
        for region, inputs in zip(self.regions, self._region_inputs, strict=True):
            region.pack_ahead({index: known[value] for index, value in enumerate(inputs) if value in known})

    def _as_declared(self, inputs: Sequence[Any]) -> list[Any]:
        """Inputs with the strides that the graph says they have."""
        declared = [value.type for value in self._graph.inputs]
        return [
            _laid_out(given, _output(kind)) if value in self._given else given
            for given, value, kind in zip(inputs, self._graph.inputs, declared, strict=True)
        ]

    def clocked(self) -> tuple[LibraryExecutable, tuple[ClockedRegion, ...]]:
        """Give what computes the same values with clocks in its regions, and these."""
        regions = tuple(region.clocked() for region in self.regions)
        return LibraryExecutable(self.executable.plan, regions), regions

    def bound(self, arguments: Sequence[int]) -> tuple[BoundProgram, tuple[OutputType, ...]] | None:
        """Give what runs the graph as it is bound now, where that is one region; the first inputs are `arguments`."""
        if self._alone is None:
            return None
        return self.regions[0].bound([arguments[index] if index < len(arguments) else None for index in self._alone])


def _planned(
    graph: Graph, weights: frozenset[Value], forward: Collection[Value], border: Border, ahead: KernelsAhead
) -> PlannedGraph:
    """Plan a graph for this machine, or find its plan on disk."""
    target = host_target()
    machine = Machine(target, cpu_count(), machine_model(target))
    question = Question(graph, weights, tuple(forward), border.loose, machine)
    return kept_plan(question, lambda is_new: _planned_now(question, ahead if is_new else None))


def _planned_now(question: Question, ahead: KernelsAhead | None) -> PlannedGraph:
    """Plan a graph; with what ends its forward, both as it is and with values computed twice, for the lower peak.

    The kernels of a graph that is planned in one way are compiled `ahead`: while they are given lanes and memory.
    """
    graph, forward, machine = question.graph, question.forward, question.machine
    lifted = run_pipeline(lift(graph))
    loose = loose_in(lifted, graph, question.loose)
    planner = Planner(machine.target, machine.lanes, machine.model, question.weights, loose)
    draft = planner.draft(lifted)
    if ahead is not None and not forward:
        for plan in draft.kernels():
            ahead.begin(plan)
    found = draft.planned() if _is_hidden(graph, lifted) else draft.within(_handed_on(graph))
    if not forward:
        return found
    now = dict(zip(graph.roots(), lifted.roots(), strict=True))
    again = recompute(lifted, [now[value] for value in forward])
    # A copy that is made before its turn, because a lane has time, takes the memory that it was to save.
    return min(found, planner.draft(again.graph, again.copies).planned(FRUGAL), key=lambda one: one.peak_bytes)


def _handed_on(graph: Graph) -> int:
    """The bytes that PyTorch's operators hand on at most at once; what they need inside is not known."""
    return PlannedGraph(graph, plan_library(graph), ()).peak_bytes


def _is_hidden(graph: Graph, lifted: Graph) -> bool:
    """Tell whether a few operators do nearly all inside, as the one that runs all steps of an LSTM."""
    return len(lifted.values) > MOST_LIFTED * len(graph.values)


def _only_region(compiled: Graph, graph: Graph) -> tuple[int, ...] | None:
    """If all of a graph is one region that gives its roots in order: which inputs the region takes."""
    whole, *items = compiled.values or (None,)
    if whole is None or whole.op != NATIVE or any(value.op != "item" for value in items):
        return None
    if tuple(dict.fromkeys(compiled.roots())) != tuple(items) or len(items) != len(dict.fromkeys(graph.roots())):
        return None
    order = {value: index for index, value in enumerate(compiled.inputs)}
    return tuple(order[operand] for operand in whole.operands)


def _unsure(region: Region, graph: Graph, *, trusted: bool) -> list[int]:
    """The inputs of a region whose strides nobody has checked.

    That is what library calls compute, and graph inputs if not `trusted`: a backward's saved values come from library
    calls of the forward.
    """
    given = set(graph.inputs) if trusted else set()
    return [index for index, value in enumerate(region.inputs) if value not in given]


def _output(kind: Type) -> OutputType:
    assert isinstance(kind, TensorType)
    return OutputType(kind.shape, kind.strides, kind.dtype)


def _laid_out(tensor: torch.Tensor, kind: OutputType) -> torch.Tensor:
    if tensor.shape != kind.shape:
        raise ExecutionError(
            f"an operator gave a tensor of sizes {list(tensor.shape)}; the program was made for {list(kind.shape)}",
            why="these sizes depend on values, and values have changed",
        )
    return torch.empty_strided(kind.shape, kind.strides, dtype=tensor.dtype).copy_(tensor)
