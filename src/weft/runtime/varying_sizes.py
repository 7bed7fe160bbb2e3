"""Run a graph of the largest sizes for any smaller ones: inputs go into larger memory, answers come out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.codegen.library import LibraryExecutable
from weft.ir.extents import Extent, Polynomial, today
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType, row_major
from weft.passes.by_sizes import SizedGraph
from weft.passes.growing import grown_type
from weft.passes.within import Within
from weft.plan.library_plan import plan_library
from weft.runtime.compiled_graph import CompiledGraph

ONE = Polynomial.constant(1)
MOST_SIZES = 1024  # of which it is remembered how answers lie
MOST_BUFFERS = 4  # that wait for the next call; as many calls at once take no new memory


@dataclass(frozen=True, slots=True)
class SizePlace:
    """Where a size is found in a call: a dimension of an input, or an input itself."""

    value: Value
    input: int
    dimension: int | None


Taker = tuple[tuple[int, ...], tuple[int, ...], Any]  # the shape, the strides, and what takes a part


class VaryingInput:
    """An input of which some sizes vary: memory for its largest ones, taken by a call and given back."""

    def __init__(self, index: int, kind: TensorType, within: Within | None = None) -> None:
        """`within` says where its elements belong, where they are no prefix of each dimension."""
        self.index = index
        self.part = None if within is None else ResultPart(kind, within)
        self._kind = TensorType(kind.dtype, tuple(map(today, kind.shape)), tuple(map(today, kind.strides)), kind.device)
        self._free: list[torch.Tensor] = []

    def take(self, tensor: torch.Tensor, taker: Taker | None) -> torch.Tensor:
        """Put a tensor at the beginning of memory that nobody else uses; what is behind it is anything finite."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _zeros(self._kind)
        self.put(memory, tensor, taker)
        return memory

    def put(self, memory: torch.Tensor, tensor: torch.Tensor, taker: Taker | None) -> None:
        """Put a tensor where it belongs in its largest form."""
        part = memory if taker is None else _part_of(memory, taker)
        if taker is not None:
            tensor = tensor.reshape(part.shape)
        for dimension, size in enumerate(tensor.shape):
            if size != part.shape[dimension]:
                part = part.narrow(dimension, 0, size)
        part.copy_(tensor)

    def give_back(self, memory: torch.Tensor, tensor: torch.Tensor) -> None:
        """Let another call have the memory that a tensor was put into."""
        del tensor
        if len(self._free) < MOST_BUFFERS:
            self._free.append(memory)


class GrowingInput(VaryingInput):
    """An input that a program writes something behind, in memory with zeros behind what there is."""

    def __init__(self, index: int, kind: TensorType, along: int, grown: TensorType) -> None:
        super().__init__(index, grown)
        self._along = along
        self._more = today(grown.shape[along]) - today(kind.shape[along])
        self._used: list[tuple[torch.Tensor, int]] = []  # and how much of it is not zero

    def take(self, tensor: torch.Tensor, taker: Taker | None) -> torch.Tensor:
        """Put a tensor at the beginning of memory that nobody else uses."""
        del taker
        try:
            memory, used = self._used.pop()
        except IndexError:
            memory, used = _zeros(self._kind), 0
        size = tensor.shape[self._along]
        memory.narrow(self._along, 0, size).copy_(tensor)
        if used > size:
            memory.narrow(self._along, size, used - size).zero_()
        return memory

    def give_back(self, memory: torch.Tensor, tensor: torch.Tensor) -> None:
        """Let another call have the memory that a tensor was put into."""
        if len(self._used) < MOST_BUFFERS:
            self._used.append((memory, tensor.shape[self._along] + self._more))


def _zeros(kind: TensorType) -> torch.Tensor:
    with torch.inference_mode(False):  # whoever takes it next may write into it in any mode
        return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device).zero_()


class ResultPart:
    """How one result lies in its largest form."""

    def __init__(self, kind: TensorType, within: Within) -> None:
        self._sizes = tuple(size.expression if isinstance(size, Extent) else size for size in kind.shape)
        largest, strides = tuple(map(today, kind.shape)), tuple(map(today, kind.strides))
        varying = [place for place, size in enumerate(kind.shape) if isinstance(size, Extent)]
        self._row_major = strides == row_major(largest)
        self._order = tuple(_order(kind))
        merged = any(len(within[place]) > 1 and any(f.size is not None for f in within[place]) for place in varying)
        self._factors = None
        if merged:
            parts = [
                within[place] if any(f.size is not None for f in within[place]) else None for place in range(kind.rank)
            ]
            self._factors = tuple(
                (factor.largest, factor.size)
                for place, part in enumerate(parts)
                for factor in (part if part is not None else _single(kind.shape[place]))
            )

    def taker(self, numbers: dict[Value, int]) -> Taker:
        """For a call's sizes: the shape, the strides, and what takes the part from the largest form."""
        shape = tuple(size if isinstance(size, int) else _value(size, numbers) for size in self._sizes)
        if self._row_major:
            strides = row_major(shape)
        else:
            found, step = [0] * len(shape), 1
            for place in reversed(self._order):
                found[place], step = step, step * max(shape[place], 1)
            strides = tuple(found)
        if self._factors is None:
            return shape, strides, tuple(slice(size) for size in shape)
        parts = tuple(slice(largest if size is None else _value(size, numbers)) for largest, size in self._factors)
        return shape, strides, (tuple(largest for largest, _ in self._factors), parts)


def is_dense(kind: Any) -> bool:
    """Whether the strides of smaller ones follow from those of the largest: no gaps, in some order of dimensions."""
    if not _varies(kind):
        return True
    step = 1
    for place in reversed(_order(kind)):
        size = today(kind.shape[place])
        if size != 1 and today(kind.strides[place]) != step:
            return False
        step *= max(size, 1)
    return True


def _order(kind: TensorType) -> list[int]:
    """The dimensions, the outermost in memory first."""
    return sorted(range(kind.rank), key=lambda place: (-today(kind.strides[place]), -today(kind.shape[place])))


def _single(size: int) -> tuple[Any, ...]:
    return (_Part(today(size), size.expression if isinstance(size, Extent) else None),)


@dataclass(frozen=True, slots=True)
class _Part:
    largest: int
    size: Polynomial | None


def _value(size: Polynomial, numbers: dict[Value, int]) -> int:
    return int(size.value(numbers.__getitem__))


@dataclass(frozen=True, slots=True)
class SizedCall:
    """What calls of the same sizes share: these, numbers made of them, and how answers lie in their largest form."""

    numbers: tuple[int, ...]
    scalars: tuple[torch.Tensor, ...]
    takers: tuple[Taker | None, ...]
    places: tuple[Taker | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Largest:
    """A compiled graph of the largest sizes, how it stands to the graph it was made of, what its call brings.

    `kept` are roots that stay in their largest form, `given` are inputs that come in it: what a forward saves for its
    backward. `within` is of inputs whose elements are no prefix.
    """

    compiled: CompiledGraph
    sized: SizedGraph
    sizes: Sequence[SizePlace]
    kept: frozenset[Value] = frozenset()
    given: frozenset[Value] = frozenset()
    within: Mapping[Value, Within] = field(default_factory=dict)
    growing: Mapping[Value, Value] = field(default_factory=dict)  # inputs, with what each grows to
    work: Polynomial = ONE  # how much there is to compute


class VaryingExecutable:
    """Takes the inputs of a graph whose sizes vary, in order, and gives its roots in order, each once.

    Sizes that are not among the inputs are those of tensors.
    """

    def __init__(self, graph: Graph, lifted: Graph, largest: Largest) -> None:
        self.compiled = largest.compiled
        self.sizes = tuple(largest.sizes)
        self._are_given = all(place.dimension is None for place in self.sizes)
        self.roots = tuple(dict.fromkeys(graph.roots()))
        inputs = {value: index for index, value in enumerate(graph.inputs)}
        self.work = largest.work
        self._inputs = [*_memories(graph, largest)]
        position = {value: index for index, value in enumerate(self.compiled.roots)}
        lifted_of = dict(zip(graph.roots(), lifted.roots(), strict=True))
        now = dict(zip(graph.roots(), largest.sized.graph.roots(), strict=False))  # behind them what grows is written
        within = dict(zip(graph.roots(), largest.sized.within, strict=False))
        self._order = tuple(position[now[root]] for root in self.roots)
        self._sources = tuple(map(inputs.get, self.roots))  # of inputs that are given back
        self.within = within
        whole = largest.kept | inputs.keys()
        kinds: dict[Value, Any] = {root: value.type for root, value in lifted_of.items()}
        self._parts = tuple(
            ResultPart(kinds[root], within[root]) if root not in whole and _varies(kinds[root]) else None
            for root in self.roots
        )
        memories = {one.index for one in self._inputs}
        large = {value: index for index, value in enumerate(largest.sized.graph.inputs)}
        self._writes = [
            (position[write.value], large[write.input])
            for write in largest.sized.graph.writes
            if large[write.input] in memories
        ]
        self.types = tuple(self.compiled.types[place] for place in self._order)
        self.order = None
        self._scalars = LibraryExecutable(plan_library(largest.sized.of_sizes))
        self._known: dict[tuple[int, ...], SizedCall] = {}

    def work_for(self, numbers: Sequence[int]) -> int:
        """How much there is to compute for these sizes, compared with others."""
        sizes = {place.value: number for place, number in zip(self.sizes, numbers, strict=True)}
        return max(_value(self.work, sizes), 1)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the graph."""
        numbers = tuple(
            [
                inputs[place.input] if place.dimension is None else inputs[place.input].shape[place.dimension]
                for place in self.sizes
            ]
        )
        call = self._known.get(numbers) or self._learn(numbers)
        with torch.no_grad():
            own = inputs if self._are_given else [*inputs, *numbers]
            given = [*own, *call.scalars]
            memories = [
                (one, one.take(inputs[one.index], part)) for one, part in zip(self._inputs, call.places, strict=True)
            ]
            for one, memory in memories:
                given[one.index] = memory
            outputs = self.compiled(given)
            for place, source in self._writes:
                if outputs[place] is not given[source]:
                    given[source].copy_(outputs[place])  # else machine code has written it in place
            found = [
                own[source] if source is not None else _taken(outputs[place], taker)
                for place, source, taker in zip(self._order, self._sources, call.takers, strict=True)
            ]
            for one, memory in memories:  # of which an answer may have been a part
                one.give_back(memory, inputs[one.index])
            return found

    @property
    def is_one_region(self) -> bool:
        """Whether all of it is one region: copies of inputs are made around it."""
        return False

    def bound(self, arguments: Sequence[int]) -> None:
        """Give what runs it as it is bound: nothing does."""

    def _learn(self, numbers: tuple[int, ...]) -> SizedCall:
        if len(self._known) >= MOST_SIZES:
            self._known.clear()
        sizes = {place.value: number for place, number in zip(self.sizes, numbers, strict=True)}
        takers = tuple(None if part is None else part.taker(sizes) for part in self._parts)
        with torch.inference_mode(False), torch.no_grad():  # calls in other modes have them too
            scalars = tuple(self._scalars(numbers))
        places = tuple(None if one.part is None else one.part.taker(sizes) for one in self._inputs)
        found = self._known[numbers] = SizedCall(numbers, scalars, takers, places)
        return found


def _memories(graph: Graph, largest: Largest) -> Iterator[VaryingInput]:
    """The memory of inputs that vary; what comes in its largest form needs none."""
    for index, value in enumerate(graph.inputs):
        if not isinstance(value.type, TensorType) or not _varies(value.type) or value in largest.given:
            continue
        if value in largest.growing:
            concat = largest.growing[value]
            yield GrowingInput(index, value.type, concat.attributes["dimension"], grown_type(concat))
        else:
            yield VaryingInput(index, value.type, largest.within.get(value))


def _varies(kind: Any) -> bool:
    return isinstance(kind, TensorType) and any(isinstance(size, Extent) for size in kind.shape)


def _taken(output: torch.Tensor, taker: Taker | None) -> torch.Tensor:
    """The part of the largest form that counts, in memory of its own; or all of it, where it does not vary."""
    if taker is None:
        return output
    shape, strides, _ = taker
    output = _part_of(output, taker).reshape(shape)
    return torch.empty_strided(shape, strides, dtype=output.dtype, device=output.device).copy_(output)


def _part_of(whole: torch.Tensor, taker: Taker) -> torch.Tensor:
    """The part of the largest form that counts, its dimensions taken apart where they are merged ones."""
    parts = taker[2]
    if parts and not isinstance(parts[0], slice):
        factors, parts = parts
        whole = whole.view(factors)
    return whole[parts]
