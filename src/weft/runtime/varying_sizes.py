"""Run a graph of the largest sizes for any smaller ones: inputs go into larger memory, answers come out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weft.codegen.torch_functions import below_autograd
from weft.ir.at_sizes import dense_order, has_extents
from weft.ir.extents import Extent, Polynomial, today
from weft.ir.graph import Graph, Value
from weft.ir.interpreter import apply_rule
from weft.ir.types import TensorType, row_major
from weft.passes.by_sizes import SizedGraph
from weft.passes.growing import grown_type
from weft.passes.true_sizes import UnforeseenSizesError
from weft.passes.within import Within, expression_of
from weft.runtime.compiled_graph import CompiledGraph, NativeRegion, RefusedError
from weft.runtime.moves import LargePlace, MovedCode, Step, extent_bytes
from weft.runtime.new_tensors import NewTensors, OutputType
from weft.trace.expected import OtherAnswerError

ONE = Polynomial.constant(1)
MOST_SIZES = 1024  # of which it is remembered how answers lie
MOST_BUFFERS = 4  # that wait for the next call; as many calls at once take no new memory


@dataclass(frozen=True, slots=True)
class SizePlace:
    """Where a size is found in a call: a dimension of an input, or an input itself."""

    value: Value
    input: int
    dimension: int | None


SteadyRun = Callable[[Sequence[Any]], Sequence[Any] | None]  # None where the call has to go the longer way
Taker = tuple[tuple[int, ...], tuple[int, ...], Any]  # the shape, the strides, and what takes a part


class VaryingInput:
    """An input of which some sizes vary: memory for its largest ones, taken by a call and given back."""

    def __init__(self, index: int, kind: TensorType, within: Within | None = None) -> None:
        """`within` says where its elements belong, where they are no prefix of each dimension."""
        self.index = index
        self.part = None if within is None else ResultPart(kind, within)
        self._kind = TensorType(kind.dtype, tuple(map(today, kind.shape)), tuple(map(today, kind.strides)), kind.device)
        self._free: list[torch.Tensor] = []
        self._sizes = tuple(size.expression if isinstance(size, Extent) else size for size in kind.shape)
        self._order = _order(kind)
        self.item = kind.dtype.itemsize
        self.is_float = kind.dtype.is_floating_point
        self.bytes = extent_bytes(self.largest)

    @property
    def largest(self) -> OutputType:
        """How the memory for the largest sizes looks."""
        return OutputType(self._kind.shape, self._kind.strides, self._kind.dtype)

    def steps(self, numbers: dict[Value, int]) -> list[Step]:
        """How a tensor of a call's sizes lies in the larger memory, and by itself."""
        if self.part is not None:
            return self.part.steps(self.largest, numbers)
        shape = tuple(size if isinstance(size, int) else _value(size, numbers) for size in self._sizes)
        large = (step * self.item for step in self._kind.strides)
        own = (step * self.item for step in _dense(shape, self._order))
        return list(zip(shape, large, own, strict=True))

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
        has_own = has_extents(kind.strides) or not dense_order(kind)
        self._strides = tuple(map(expression_of, kind.strides)) if has_own else None
        self._within = tuple(
            factors if any(factor.size is not None for factor in factors) else _single(size)
            for factors, size in zip(within, kind.shape, strict=True)
        )
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
        if self._strides is not None:
            strides = tuple([_value(stride, numbers) for stride in self._strides])
        else:
            strides = row_major(shape) if self._row_major else _dense(shape, self._order)
        if self._factors is None:
            return shape, strides, tuple(slice(size) for size in shape)
        parts = tuple(slice(largest if size is None else _value(size, numbers)) for largest, size in self._factors)
        return shape, strides, (tuple(largest for largest, _ in self._factors), parts)

    def steps(self, kind: OutputType, numbers: dict[Value, int]) -> list[Step]:
        """How the part lies in the largest form, and by itself: of each factor of each dimension."""
        shape, strides, _ = self.taker(numbers)
        item, found = kind.dtype.itemsize, []
        for place, factors in enumerate(self._within):
            large, own = kind.strides[place] * item, strides[place] * item
            for factor in reversed(factors):
                count = factor.largest if factor.size is None else _value(factor.size, numbers)
                found.append((count, large, own))
                large, own = large * factor.largest, own * count
            if not factors and shape[place] != 1:
                found.append((shape[place], large, own))
        return found


def has_known_strides(kind: Any) -> bool:
    """Whether it is known how a result of any size lies in memory, each element at a place of its own or all at one.

    Its strides are made of sizes, or follow from those of the largest: there are no gaps, in some order of dimensions,
    or gaps alone that do not vary.
    """
    if not _varies(kind):
        return True
    order = _order(kind)
    inside = [size for place, size in enumerate(kind.shape) if place != order[0] and kind.strides[place]]
    is_known = has_extents(kind.strides) or not has_extents(tuple(inside))
    return bool(dense_order(kind)) or (is_known and not _overlaps(kind, order))


def _overlaps(kind: TensorType, order: Sequence[int]) -> bool:
    """Whether elements at several places are one, where they are not the same along all of a dimension."""
    end = 0
    for place in reversed(order):
        size, step = today(kind.shape[place]), today(kind.strides[place])
        if size > 1 and step:
            if step <= end:
                return True
            end += (size - 1) * step
    return False


def _order(kind: TensorType) -> list[int]:
    """The dimensions, the outermost in memory first."""
    return sorted(range(kind.rank), key=lambda place: (-today(kind.strides[place]), -today(kind.shape[place])))


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps, whose dimensions are given from the outermost in memory on."""
    found, step = [0] * len(shape), 1
    for place in reversed(order):
        found[place], step = step, step * max(shape[place], 1)
    return tuple(found)


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
    """What calls of the same sizes share: these, numbers made of them, and how answers lie in their largest form.

    Where native code takes answers out, `answers` makes the tensors for them, and `moves` is where that reads how.
    """

    numbers: tuple[int, ...]
    scalars: tuple[torch.Tensor, ...]
    takers: tuple[Taker | None, ...]
    places: tuple[Taker | None, ...]
    answers: NewTensors | None = None
    moves: int = 0
    tables: object = None


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
        kinds |= {root: root.type for root in self.roots if isinstance(root.type, TensorType)}
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
        self._of_sizes = largest.sized.of_sizes
        self._known: dict[tuple[int, ...], SizedCall] = {}
        self._moved: list[tuple[VaryingInput, LargePlace]] = []
        self._taken: dict[int, tuple[ResultPart, LargePlace]] = {}  # by the place of an output
        self._outputs = self._order  # which outputs of native code the roots are
        self._code = self._native()
        self._in_order = self._outputs == tuple(range(len(self.compiled.roots)))

    def _native(self) -> MovedCode | None:
        """What makes all of a call natively, where that is one region which writes new tensors alone."""
        alone = self.compiled.alone
        movable = None if alone is None else alone[0].movable()
        plain = not self._writes and len({*self._order}) == len(self._order) == len(self.compiled.roots)
        if alone is None or movable is None or not plain or any(source is not None for source in self._sources):
            return None
        (executable, kinds), order = movable, alone[1]
        self._outputs = tuple(alone[2][place] for place in self._order)
        if any(isinstance(one, GrowingInput) for one in self._inputs):
            return None  # Python knows how much of its memory is in use
        parts = {place: part for place, part in zip(self._outputs, self._parts, strict=True) if part is not None}
        read = {order.index(one.index): one for one in self._inputs if one.index in order}
        cleared = frozenset(index for index, one in read.items() if not one.is_float)
        code = MovedCode(executable, order, kinds)
        places = code.place({index: one.bytes for index, one in read.items()}, cleared, sorted(parts))
        if places is None:
            return None
        self._moved = [(one, places[0][index]) for index, one in read.items()]
        self._taken = {place: (part, places[1][place]) for place, part in parts.items()}
        return code

    def work_for(self, numbers: Sequence[int]) -> int:
        """How much there is to compute for these sizes, compared with others."""
        sizes = {place.value: number for place, number in zip(self.sizes, numbers, strict=True)}
        return max(_value(self.work, sizes), 1)

    def _numbers(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """The sizes of a call."""
        return tuple(
            [
                inputs[place.input] if place.dimension is None else inputs[place.input].shape[place.dimension]
                for place in self.sizes
            ]
        )

    def largest(self, inputs: Sequence[Any]) -> list[Any]:
        """What a call hands to the compiled graph: inputs in their largest form, sizes, and what is made of these."""
        numbers = self._numbers(inputs)
        call = self._known.get(numbers) or self._learn(numbers)
        with torch.no_grad():
            return self._in_largest_form(inputs, call)[0]

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph."""
        numbers = self._numbers(inputs)
        call = self._known.get(numbers) or self._learn(numbers)
        if call.answers is not None and self._code is not None:
            outputs = call.answers()
            given = [*inputs, *call.scalars] if self._are_given else [*inputs, *numbers, *call.scalars]
            if self._code.run(given, outputs, call.moves):
                return outputs if self._in_order else [outputs[place] for place in self._outputs]
        return self._run_by_python(inputs, call)

    def steady(self, inputs: Sequence[Any]) -> SteadyRun | None:
        """Give what runs calls of the sizes of these inputs, where all of it is native code; None where it is not."""
        numbers = self._numbers(inputs)
        call, code = self._known.get(numbers) or self._learn(numbers), self._code
        if call.answers is None or code is None:
            return None
        answers, native, in_order, places = call.answers, call.answers.native, self._in_order, self._outputs
        run = code.steady(call.scalars if self._are_given else (*numbers, *call.scalars), call.moves)

        def steady(inputs: Sequence[Any]) -> Sequence[Any] | None:
            outputs = native() or answers()
            if not run(inputs, outputs):
                return None
            return outputs if in_order else [outputs[place] for place in places]

        return steady

    def _in_largest_form(
        self, inputs: Sequence[Any], call: SizedCall
    ) -> tuple[list[Any], list[tuple[VaryingInput, torch.Tensor]]]:
        """What goes in, and the memory that inputs were put into."""
        own = inputs if self._are_given else [*inputs, *call.numbers]
        given = [*own, *call.scalars]
        memories = [
            (one, one.take(inputs[one.index], part)) for one, part in zip(self._inputs, call.places, strict=True)
        ]
        for one, memory in memories:
            given[one.index] = memory
        return given, memories

    def _run_by_python(self, inputs: Sequence[Any], call: SizedCall) -> list[Any]:
        with below_autograd():  # operators may look at the grad mode, which stays as it is
            own = inputs if self._are_given else [*inputs, *call.numbers]
            given, memories = self._in_largest_form(inputs, call)
            try:
                outputs = self.compiled(given)
            except (UnforeseenSizesError, OtherAnswerError) as error:
                raise RefusedError from error
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

    @property
    def regions(self) -> tuple[NativeRegion, ...]:
        """The regions in machine code."""
        return self.compiled.regions

    @property
    def peak_bytes(self) -> int:
        """The most bytes that it is planned to need at once, beside its inputs."""
        return self.compiled.peak_bytes

    def bound(self, arguments: Sequence[int]) -> None:
        """Give what runs it as it is bound: nothing does."""

    def _learn(self, numbers: tuple[int, ...]) -> SizedCall:
        if len(self._known) >= MOST_SIZES:
            self._known.clear()
        sizes = {place.value: number for place, number in zip(self.sizes, numbers, strict=True)}
        takers = tuple(None if part is None else part.taker(sizes) for part in self._parts)
        with torch.inference_mode(False), torch.no_grad():  # calls in other modes have them too
            scalars = self._scalars(numbers)
        places = tuple(None if one.part is None else one.part.taker(sizes) for one in self._inputs)
        found = self._sized(SizedCall(numbers, scalars, takers, places), sizes)
        self._known[numbers] = found
        return found

    def _scalars(self, numbers: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """What kernels are given of some sizes, each a tensor of one element: calls of ever new ones wait for it."""
        known: dict[Value, Any] = dict(zip(self._of_sizes.inputs, numbers, strict=True))
        for value in self._of_sizes.values:
            known[value] = apply_rule(value, [known[operand] for operand in value.operands])
        return tuple([known[root] for root in dict.fromkeys(self._of_sizes.roots())])

    def _sized(self, call: SizedCall, sizes: dict[Value, int]) -> SizedCall:
        """Add what native code needs to calls of some sizes."""
        code = self._code
        if code is None:
            return call
        inwards = [(place, one.steps(sizes), one.item) for one, place in self._moved]
        before = [place.move(steps, item) for place, steps, item in inwards if not place.is_there(steps)]
        behind, kinds = [], list(code.kinds)
        for place, (part, large) in self._taken.items():
            kind = code.kinds[place]
            shape, strides, _ = part.taker(sizes)
            kinds[place] = OutputType(shape, strides, kind.dtype)
            steps = part.steps(kind, sizes)
            if not large.is_there(steps):
                behind.append(large.move(steps, kind.dtype.itemsize))
        moves = code.moves(before, behind, max(_value(self.work, sizes), 1))
        return call if moves is None else replace(call, answers=NewTensors(kinds), moves=moves[0], tables=moves[1])


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
    return isinstance(kind, TensorType) and has_extents(kind)


def _taken(output: torch.Tensor, taker: Taker | None) -> torch.Tensor:
    """The part of the largest form that counts, in memory of its own; or all of it, where it does not vary."""
    if taker is None:
        return output
    shape, strides, _ = taker
    output = _part_of(output, taker).reshape(shape)
    found = part = torch.empty_strided(shape, strides, dtype=output.dtype, device=output.device)
    for place, (size, step) in enumerate(zip(shape, strides, strict=True)):
        if step == 0 and size > 1:  # the same number at all places, which is written once
            part, output = part.narrow(place, 0, 1), output.narrow(place, 0, 1)
    part.copy_(output)
    return found


def _part_of(whole: torch.Tensor, taker: Taker) -> torch.Tensor:
    """The part of the largest form that counts, its dimensions taken apart where they are merged ones."""
    parts = taker[2]
    if parts and not isinstance(parts[0], slice):
        factors, parts = parts
        whole = whole.view(factors)
    return whole[parts]
