"""Run a planned graph: its regions in machine code, the rest by PyTorch's operators.

Where kernels refuse the data, all of it runs by operators: for an index out of range that is their exception; for
strange offsets of bags that they take, their result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Any

import torch

from weft.codegen.library import LibraryExecutable
from weft.errors import ExecutionError
from weft.ir.generator import generator_put_back
from weft.ir.graph import Graph, Value
from weft.ir.library import Operand
from weft.ir.ops import effect_of
from weft.ir.types import NumberType, TensorType, Type
from weft.passes.true_sizes import CUT, PUT, cut_to_sizes, put_in_largest
from weft.plan.library_plan import plan_library
from weft.plan.planned import PlannedGraph, PlannedRegion
from weft.plan.regions.region import NATIVE, Region
from weft.runtime.binding import BoundProgram
from weft.runtime.cuda_capture import captured
from weft.runtime.executable import Begun, ClockedExecutable, LaneSpan, NativeExecutable
from weft.runtime.found_places import nonzero
from weft.runtime.lane_choice import LaneChoice
from weft.runtime.new_tensors import NewTensors, OutputType
from weft.runtime.saved_strides import PYTORCHS, SavedStrides
from weft.target import host_target


class RefusedError(Exception):
    """A region has done nothing, because data is not as its kernels need it."""


class InPlace(threading.local):
    """How many regions of this thread have written memory that they were given, which no version tells before the end.

    A program that fails half-way leaves it so: only if none has, and no version has changed, may it be run again.
    """

    regions: int = 0


IN_PLACE = InPlace()


def run_as_operators(graph: Graph, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run a graph, as it was before it was lifted, by PyTorch's operators; gives its roots in order, each once."""
    executable = LibraryExecutable(plan_library(graph))
    draws = any(effect_of(value) == "random" for value in graph.values)
    # What was drawn before the region is drawn again; other threads draw from the same generator.
    with generator_put_back() if draws else nullcontext():
        found = dict(zip(executable.plan.outputs, executable(inputs), strict=True))
    return tuple(found[root] for root in dict.fromkeys(graph.roots()))


FASTER: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"aten.nonzero.default": nonzero, CUT: cut_to_sizes, PUT: put_in_largest}
)
"""What runs in the place of PyTorch's operators, and gives the same sooner: also our own, without PyTorch between."""


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

    @property
    def lane_choice(self) -> LaneChoice | None:
        """What the clock has decided of lanes and one lane."""
        return self._execute.lane_choice

    def pack_ahead(self, known: Mapping[int, torch.Tensor]) -> None:
        """Let another core begin to pack weights for a call that comes soon, as far as its inputs are known."""
        copied = {index for index, _ in self._checked}  # perhaps
        self._execute.pack_ahead({index: tensor for index, tensor in known.items() if index not in copied})

    @property
    def checked(self) -> tuple[int, ...]:
        """The inputs of which it looks how they lie."""
        return tuple(index for index, _ in self._checked)

    def movable(self) -> tuple[NativeExecutable, tuple[OutputType, ...]] | None:
        """Give what runs it, and what it gives, if that makes new tensors of inputs that are taken as they are."""
        return None if self._checked or self._writes else (self._execute, self._outputs)

    def clocked(self) -> ClockedRegion:
        """Give the same region with a clock."""
        return ClockedRegion(self)

    def bound(self, positions: Sequence[int]) -> tuple[BoundProgram, tuple[OutputType, ...]] | None:
        """Give what runs the region as it is bound now, if that makes new tensors of inputs that are taken as they are.

        `positions` are where a call has the region's inputs, below 0 for those that are no arguments.
        """
        if self._checked or self._writes:
            return None
        found = self._execute.bound(positions)
        return None if found is None else (found, self._outputs)

    def walked(self, positions: Sequence[int], tensors: Sequence[torch.Tensor | None]) -> BoundProgram | None:
        """Give the same for inputs that native code has made as the region's types say; it is bound to these `tensors`.

        All positions are below 0.
        """
        if self._writes or not self._execute.is_bound_to(tensors):
            return None
        return self._execute.bound(positions)

    @property
    def types(self) -> tuple[OutputType, ...]:
        """What it gives."""
        return self._outputs


@dataclass(frozen=True, slots=True)
class NumberStep:
    """A number that is computed of others: inputs of a graph, or behind them computed ones."""

    operator: str
    arguments: tuple[Operand | int | float, ...]  # an operand's index is that of a number
    kind: str


@dataclass(frozen=True, slots=True)
class NativeParts:
    """A graph that is one region, and what makes tensors of numbers that go in.

    `operands` are which inputs of the graph the region takes, each with the type of the elements where it is a number
    of a kind in `number_kinds`; `order` which of its outputs each root is. `steps` compute numbers, which count behind
    the inputs.
    """

    region: NativeRegion
    operands: tuple[tuple[int, torch.dtype | None], ...]
    number_kinds: Mapping[int, str]
    order: tuple[int, ...]
    steps: tuple[NumberStep, ...] = ()

    @property
    def types(self) -> tuple[OutputType, ...]:
        """What the region gives."""
        return self.region.types


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

    def spans(self) -> list[LaneSpan]:
        """Give what each lane did in the last call."""
        return self._clock.spans()


class CompiledGraph:
    """Runs a graph: takes its inputs in order, gives its roots in order, each once.

    With `strides`, some tensors have other strides than the graph says.
    """

    def __init__(
        self,
        graph: Graph,
        weights: frozenset[Value],
        planned: PlannedGraph,
        regions: tuple[NativeRegion, ...],
        strides: SavedStrides = PYTORCHS,
    ) -> None:
        self._graph = graph
        self.of_operators = True  # of PyTorch's, which run where kernels refuse the data
        self._given = strides.given
        self.roots = tuple(dict.fromkeys(graph.roots()))
        self.regions = regions
        self.planned = planned
        compiled = planned.compiled
        self._region_inputs = tuple(one.region.inputs for one in planned.regions)
        self.peak_bytes = planned.peak_bytes
        self.executable = LibraryExecutable(planned.library, self.regions, FASTER)
        position = {value: index for index, value in enumerate(self.executable.plan.outputs)}
        now = dict(zip(graph.roots(), compiled.roots(), strict=True))
        self.types = tuple(now[root].type for root in self.roots)
        self._alone = _only_region(compiled, graph)
        if self._alone is not None:
            position = {value: value.attributes["index"] for value in compiled.values[1:]}
        order = tuple(position[now[root]] for root in self.roots)
        self._order = None if order == tuple(range(len(position))) else order
        lasting = [index for index, value in enumerate(self.executable.plan.inputs) if value in weights]
        self._captured = captured(self.executable, lasting, len(self.regions))
        self._run = self.executable if self._captured is None else self._captured

    @property
    def capture(self) -> str:
        """Say whether the graph runs in a CUDA graph, and if not why; nothing of graphs on the CPU."""
        return "" if self._captured is None else self._captured.describe()

    @property
    def alone(self) -> tuple[NativeRegion, tuple[int, ...], tuple[int, ...]] | None:
        """Where all of it is one region: that, which inputs are the region's, which of its outputs each root is."""
        if self._alone is None:
            return None
        return self.regions[0], self._alone, self._order or tuple(range(len(self.roots)))

    def dense(self) -> tuple[frozenset[int], frozenset[int]]:
        """Which inputs and roots lie without gaps at any sizes, where these vary, by their places."""
        plans = [one.plan for one in self.planned.regions]
        buffers = [{(plan.buffers[at].kind, plan.buffers[at].index) for at in plan.dense} for plan in plans]
        inputs = {value: place for place, value in enumerate(self.planned.compiled.inputs)}
        read = {
            inputs[value]
            for known, values in zip(buffers, self._region_inputs, strict=True)
            for index, value in enumerate(values)
            if ("input", index) in known
        }
        now = dict(zip(self._graph.roots(), self.planned.compiled.roots(), strict=True))
        given = {
            place
            for place, root in enumerate(now[root] for root in self.roots)
            if root.op == "item" and root.operands[0].op == NATIVE
            if ("output", root.attributes["index"]) in buffers[root.operands[0].attributes["region"]]
        }
        return frozenset(read), frozenset(given)

    def native(self) -> frozenset[int]:
        """Which inputs are read by machine code alone, which does not ask how they lie."""
        compiled = self.planned.compiled
        users, roots = compiled.users(), {*compiled.roots()}
        asked = {
            values[index]
            for region, values in zip(self.regions, self._region_inputs, strict=True)
            for index in region.checked
        }
        return frozenset(
            place
            for place, value in enumerate(compiled.inputs)
            if value not in roots | asked and users[value] and all(reader.op == NATIVE for reader in users[value])
        )

    def cut(self) -> frozenset[int]:
        """Which inputs are read by PyTorch's operators alone, which take what a call has of them, and only read it."""
        compiled = self.planned.compiled
        users, roots = compiled.users(), {*compiled.roots()}

        def is_cut(value: Value, reader: Value) -> bool:
            call = reader.attributes["call"] if reader.op == "library" else None
            if call is None or call.target != CUT or value in reader.operands[1:] or reader in roots:
                return False
            assert isinstance(value.type, TensorType)
            further = [one.attributes["call"] if one.op == "library" else None for one in users[reader]]
            return len(call.arguments[1]) == value.type.rank and not any(one is None or one.written for one in further)

        return frozenset(
            place
            for place, value in enumerate(compiled.inputs)
            if value not in roots and users[value] and all(is_cut(value, reader) for reader in users[value])
        )

    @property
    def is_one_region(self) -> bool:
        """Whether all of it is one region."""
        return self._alone is not None

    def native_parts(self) -> NativeParts | None:
        """Give what it is of, where all that it does besides one region is to make tensors of numbers."""
        alone = self.alone
        if alone is not None:
            return NativeParts(alone[0], tuple((index, None) for index in alone[1]), {}, alone[2])
        if len(self.regions) != 1 or self._captured is not None:
            return None
        plan = self.executable.plan
        inputs = {value: index for index, value in enumerate(plan.inputs)}
        scalars: dict[Value, tuple[int, torch.dtype]] = {}
        kinds: dict[int, str] = {}
        items: dict[Value, int] = {}
        native: Value | None = None
        steps: list[NumberStep] = []
        for step in plan.steps:
            value = step.value
            if value.op == "number" and isinstance(value.type, NumberType):
                arguments = tuple(
                    Operand(inputs[value.operands[one.index]]) if isinstance(one, Operand) else one
                    for one in value.attributes["arguments"]
                )
                steps.append(NumberStep(value.attributes["operator"], arguments, value.type.kind))
                kinds |= {inputs[one]: one.type.kind for one in value.operands if isinstance(one.type, NumberType)}
                inputs[value] = len(inputs)
                continue
            number = value.operands[0] if value.op == "scalar" else None
            if number is not None and isinstance(number.type, NumberType) and number in inputs:
                scalars[value] = inputs[number], value.attributes["dtype"]
                kinds[inputs[number]] = number.type.kind
            elif value.op == NATIVE:
                native = value
            elif value.op == "item" and value.operands[0] is native:
                items[value] = value.attributes["index"]
            else:
                return None
        outputs = [plan.outputs[place] for place in self._order or range(len(plan.outputs))]
        if native is None or any(one not in inputs and one not in scalars for one in native.operands):
            return None
        if any(output not in items for output in outputs):
            return None
        operands = tuple(scalars[one] if one in scalars else (inputs[one], None) for one in native.operands)
        return NativeParts(self.regions[0], operands, kinds, tuple(items[output] for output in outputs), tuple(steps))

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the graph."""
        outputs: tuple[Any, ...] | None
        try:
            if self._alone is not None:
                outputs = self.regions[0](*[inputs[index] for index in self._alone])
                return outputs if self._order is None else tuple([outputs[index] for index in self._order])
            outputs = self._run(inputs)
        except RefusedError:
            if not self.of_operators:
                raise
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

    @property
    def order(self) -> tuple[int, ...] | None:
        """The places of the roots among the outputs of the one region, where they come in another order there."""
        return self._order

    def bound(self, arguments: Sequence[int]) -> tuple[BoundProgram, tuple[OutputType, ...]] | None:
        """Give what runs the graph as it is bound now, where that is one region; the first inputs are `arguments`.

        What it makes comes in the order of the region.
        """
        if self._alone is None:
            return None
        count = len(arguments)
        return self.regions[0].bound(
            [arguments[index] if index < count else count - 1 - index for index in self._alone]
        )


def _only_region(compiled: Graph, graph: Graph) -> tuple[int, ...] | None:
    """If all of a graph is one region that gives its roots and no more: which inputs the region takes."""
    whole, *items = compiled.values or (None,)
    if whole is None or whole.op != NATIVE or any(value.op != "item" for value in items):
        return None
    if {*compiled.roots()} != {*items} or len(items) != len(dict.fromkeys(graph.roots())):
        return None
    order = {value: index for index, value in enumerate(compiled.inputs)}
    return tuple(order[operand] for operand in whole.operands)


def unsure_inputs(region: Region, graph: Graph, *, trusted: bool) -> list[int]:
    """Give the inputs of a region whose strides nobody has checked.

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
