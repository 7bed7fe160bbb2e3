"""Run a graph of the largest sizes for any smaller ones: inputs go into larger memory, answers come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.codegen.library import LibraryExecutable
from weft.errors import InternalError
from weft.ir.extents import Extent, Polynomial, today
from weft.ir.graph import Value
from weft.ir.types import TensorType, row_major
from weft.passes.by_sizes import SizedGraph
from weft.passes.within import Within
from weft.plan.library_plan import plan_library
from weft.runtime.compiled_graph import CompiledGraph

MOST_SIZES = 1024  # of which it is remembered how answers lie
MOST_BUFFERS = 4  # that wait for the next call; as many calls at once take no new memory


@dataclass(frozen=True, slots=True)
class SizePlace:
    """Where a size is found in a call: a dimension of an input."""

    value: Value
    input: int
    dimension: int


class VaryingInput:
    """An input of which some sizes vary: memory for its largest ones, taken by a call and given back."""

    def __init__(self, index: int, kind: TensorType) -> None:
        self.index = index
        self._kind = TensorType(kind.dtype, tuple(map(today, kind.shape)), tuple(map(today, kind.strides)), kind.device)
        self._free: list[torch.Tensor] = []

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Put a tensor at the beginning of memory that nobody else uses; what is behind it is anything finite."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _zeros(self._kind)
        part = memory
        for dimension, size in enumerate(tensor.shape):
            if size != part.shape[dimension]:
                part = part.narrow(dimension, 0, size)
        part.copy_(tensor)
        return memory

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

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Put a tensor at the beginning of memory that nobody else uses."""
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

    def taker(self, numbers: dict[Value, int]) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
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
    takers: tuple[Any, ...]


class VaryingExecutable:
    """Takes the inputs of a graph whose sizes vary, in order, and gives its roots in order, each once."""

    def __init__(
        self, compiled: CompiledGraph, sized: SizedGraph, sizes: Sequence[SizePlace], kinds: Sequence[Any]
    ) -> None:
        self.compiled = compiled
        self.work = Polynomial.constant(1)  # how much there is to compute
        self.sizes = tuple(sizes)
        self.roots = compiled.roots
        self._places = tuple((place.input, place.dimension) for place in self.sizes)
        self._scalars = LibraryExecutable(plan_library(sized.of_sizes))
        self._inputs: Sequence[VaryingInput] = kinds[0]
        seen: dict[Value, ResultPart | None] = {}
        for result, kind, within in zip(sized.graph.results, kinds[1], sized.within, strict=True):
            seen[result.value] = ResultPart(kind, within) if _varies(kind) else None
        for write in sized.graph.writes:
            seen.setdefault(write.value, None)
        self._answers = tuple(seen[root] for root in compiled.roots)
        position = {root: place for place, root in enumerate(compiled.roots)}
        inputs = {value: index for index, value in enumerate(sized.graph.inputs)}
        memories = {one.index for one in self._inputs}
        self._writes = [
            (position[write.value], inputs[write.input])
            for write in sized.graph.writes
            if inputs[write.input] in memories
        ]
        self._known: dict[tuple[int, ...], SizedCall] = {}

    def work_for(self, numbers: Sequence[int]) -> int:
        """How much there is to compute for these sizes, compared with others."""
        sizes = {place.value: number for place, number in zip(self.sizes, numbers, strict=True)}
        return max(_value(self.work, sizes), 1)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the graph."""
        numbers = tuple([inputs[index].shape[dimension] for index, dimension in self._places])
        call = self._known.get(numbers) or self._learn(numbers)
        with torch.no_grad():
            given = [*inputs, *numbers, *call.scalars]
            memories = [(one, one.take(inputs[one.index])) for one in self._inputs]
            for one, memory in memories:
                given[one.index] = memory
            outputs = self.compiled(given)
            for place, source in self._writes:
                if outputs[place] is not given[source]:
                    given[source].copy_(outputs[place])  # else machine code has written it in place
            found = [
                output if taker is None else _taken(output, taker)
                for output, taker in zip(outputs, call.takers, strict=True)
            ]
            for one, memory in memories:  # of which an answer may have been a part
                one.give_back(memory, inputs[one.index])
            return found

    def _learn(self, numbers: tuple[int, ...]) -> SizedCall:
        if len(self._known) >= MOST_SIZES:
            self._known.clear()
        sizes = {place.value: number for place, number in zip(self.sizes, numbers, strict=True)}
        takers = tuple(None if answer is None else answer.taker(sizes) for answer in self._answers)
        with torch.inference_mode(False), torch.no_grad():  # calls in other modes have them too
            scalars = tuple(self._scalars(numbers))
        found = self._known[numbers] = SizedCall(numbers, scalars, takers)
        return found


def _varies(kind: Any) -> bool:
    return isinstance(kind, TensorType) and any(isinstance(size, Extent) for size in kind.shape)


def _taken(output: torch.Tensor, taker: tuple[tuple[int, ...], tuple[int, ...], Any]) -> torch.Tensor:
    shape, strides, parts = taker
    if parts and not isinstance(parts[0], slice):
        factors, parts = parts
        output = output.reshape(factors)[parts].reshape(shape)
    else:
        output = output[parts]
    if output.shape != shape:
        raise InternalError(f"a result of sizes {list(output.shape)} was to have {list(shape)}")
    return torch.empty_strided(shape, strides, dtype=output.dtype, device=output.device).copy_(output)
