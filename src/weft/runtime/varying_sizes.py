"""Run a graph of the largest sizes for any smaller ones: inputs go into larger memory, answers come out of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from weft.codegen.torch_functions import below_autograd, tensor_functions
from weft.ir.extents import Polynomial
from weft.ir.generator import generator_state
from weft.ir.graph import Graph, Value
from weft.ir.interpreter import apply_rule
from weft.ir.ops import effect_of
from weft.ir.size_arithmetic import SizeArithmetic, row_of
from weft.ir.types import TensorType
from weft.passes.by_sizes import SizedGraph
from weft.passes.growing import grown_type
from weft.passes.true_sizes import PUT, UnforeseenSizesError
from weft.passes.within import Within
from weft.plan.extents.computed import KernelWork
from weft.plan.planned import PlannedRegion
from weft.runtime.binding import BoundProgram
from weft.runtime.compiled_graph import CompiledGraph, NativeRegion, RefusedError
from weft.runtime.executable import Words, computing
from weft.runtime.large_forms import GrowingInput, ResultPart, Taker, VaryingInput, lie_there, taken, value_of, varies
from weft.runtime.machine import machine_model
from weft.runtime.memory_layout import object_layout
from weft.runtime.moves import LargePlace, MovedCode, extent_bytes
from weft.runtime.new_tensors import NewTensors, OutputType
from weft.runtime.size_words import SCALARS, Moved, Results, SizeWords
from weft.target import host_target
from weft.trace.expected import OtherAnswerError

ONE = Polynomial.constant(1)
MOST_SIZES = 1024  # of which it is remembered how answers lie
TIMES_TO_LEARN = 32  # that sizes have come, from which on it is: to learn takes as long as some 50 calls save by it


@dataclass(frozen=True, slots=True)
class SizePlace:
    """Where a size is found in a call: a dimension of an input, or an input itself."""

    value: Value
    input: int
    dimension: int | None


def sizes_in(inputs: Sequence[Any], places: Iterable[tuple[int, int | None]]) -> list[int]:
    """The sizes of a call: dimensions of inputs, or inputs themselves."""
    return [inputs[place] if dimension is None else inputs[place].shape[dimension] for place, dimension in places]


SteadyRun = Callable[[Sequence[Any]], Sequence[Any] | None]  # None where the call has to go the longer way


@dataclass(frozen=True, slots=True)
class SizedCall:
    """What calls of the same sizes share: these, numbers made of them, and how answers lie in their largest form.

    Where native code takes answers out, `answers` makes the tensors for them, and `moves` is what it reads of how.
    """

    numbers: tuple[int, ...]
    work: int
    scalars: tuple[torch.Tensor, ...]
    takers: tuple[Taker | None, ...]
    places: tuple[Taker | None, ...]
    answers: NewTensors | None = None
    moves: Words | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Largest:
    """A compiled graph of the largest sizes, how it stands to the graph it was made of, what its call brings.

    `kept` are roots that stay in their largest form, `given` are inputs that come in it: what a forward saves for its
    backward. `within` is of inputs whose elements are no prefix.
    """

    compiled: CompiledGraph
    sized: SizedGraph
    sizes: Sequence[SizePlace]
    takes_sizes: bool  # among its inputs
    kept: frozenset[Value] = frozenset()
    given: frozenset[Value] = frozenset()
    within: Mapping[Value, Within] = field(default_factory=dict)
    growing: Mapping[Value, Value] = field(default_factory=dict)  # inputs, with what each grows to
    work: Polynomial = ONE  # how much there is to compute
    fixed: frozenset[Value] = frozenset()  # roots whose strides are the same at any size


class VaryingExecutable:
    """Takes the inputs of a graph whose sizes vary, in order, and gives its roots in order, each once.

    Sizes that are not among the inputs are those of tensors.
    """

    def __init__(self, graph: Graph, lifted: Graph, largest: Largest) -> None:
        self.compiled = largest.compiled
        self.sizes = tuple(largest.sizes)
        self._are_given = largest.takes_sizes
        self._places = tuple((place.input, place.dimension) for place in self.sizes)
        self.roots = tuple(dict.fromkeys(graph.roots()))
        inputs = {value: index for index, value in enumerate(graph.inputs)}
        self.work = largest.work
        self._inputs = [*memories_of(graph, largest.given, largest.growing, largest.within)]
        dense, self._dense = self.compiled.dense()
        cut, native = self.compiled.cut(), self.compiled.native() & dense
        for one in self._inputs:
            one.is_dense, one.is_cut = one.index in dense, one.index in cut and one.part is None
        position = {value: index for index, value in enumerate(self.compiled.roots)}
        lifted_of = dict(zip(graph.roots(), lifted.roots(), strict=True))
        now = dict(zip(graph.roots(), largest.sized.graph.roots(), strict=False))  # behind them what grows is written
        within = dict(zip(graph.roots(), largest.sized.within, strict=False))
        self._order = tuple(position[now[root]] for root in self.roots)
        self._sources = tuple(map(inputs.get, self.roots))  # of inputs that are given back
        self.within = within
        parts = parts_of_results(graph, lifted_of, within, (largest.kept, largest.fixed))
        self._parts = tuple(map(parts.get, self.roots))
        memories = {one.index for one in self._inputs}
        large = {value: index for index, value in enumerate(largest.sized.graph.inputs)}
        self._writes = [
            (position[write.value], large[write.input])
            for write in largest.sized.graph.writes
            if large[write.input] in memories
        ]
        for one in self._inputs:  # what is written is copied back from memory of its own
            one.is_native = one.index in native and all(one.index != source for _, source in self._writes)
        self.types = tuple(self.compiled.types[place] for place in self._order)
        self.order = None
        self._draws = any(effect_of(value) == "random" for value in lifted.values)
        self._largest, self._of_sizes = largest.sized, largest.sized.of_sizes
        self._known: dict[tuple[int, ...], SizedCall] = {}
        self._times: dict[tuple[int, ...], int] = {}  # that sizes have come which are not known
        self._moved: list[tuple[VaryingInput, LargePlace]] = []
        self._taken: dict[int, tuple[ResultPart, LargePlace]] = {}  # by the place of an output
        self._outputs = self._order  # which outputs of native code the roots are
        self._code = self._native()
        self._words = self._all_words()
        self._made = self._makers()
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
        inwards = {
            index: code.room("input", index, one.bytes, always=lie_there(one.steps())) for index, one in read.items()
        }
        outwards = {
            index: code.room(
                "output", index, extent_bytes(kinds[index]), always=lie_there(parts[index].steps(kinds[index]))
            )
            for index in sorted(parts)
        }
        places = code.place(inwards, cleared, outwards)
        if places is None:
            return None
        self._moved = [(one, places[0][index]) for index, one in read.items()]
        self._taken = {place: (part, places[1][place]) for place, part in parts.items()}
        return code

    def work_for(self, numbers: Sequence[int]) -> int:
        """How much there is to compute for these sizes, compared with others."""
        sizes = {place.value: number for place, number in zip(self.sizes, numbers, strict=True)}
        return max(value_of(self.work, sizes), 1)

    def share_for(self, numbers: Sequence[int], largest: Sequence[int]) -> float:
        """How much of what a call of these sizes computes it needs, by estimate; `largest` are those of the program."""
        sizes = {place.value: number for place, number in zip(self.sizes, numbers, strict=True)}
        needed = self.work_for(numbers) / self.work_for(largest)
        return self._kernels.share(lambda size: value_of(size, sizes), needed)

    @cached_property
    def is_spread(self) -> bool:
        """Whether PyTorch's operators put what they give into memory of the largest sizes, where it lies far apart."""
        planned = self.compiled.planned
        steps = planned.library.steps if planned.regions else ()
        return any(step.value.op == "library" and step.value.attributes["call"].target == PUT for step in steps)

    @cached_property
    def _kernels(self) -> KernelWork:
        planned = self.compiled.planned
        places = {value: place for place, value in enumerate(planned.compiled.inputs)}
        held = [self._largest.sizes.get(value) for value in self._largest.graph.inputs]

        def sizes_of(region: PlannedRegion) -> dict[int, Polynomial]:
            known = [held[places[value]] if value in places else None for value in region.region.inputs]
            buffers = region.plan.of_kind("input")
            return {number: size for number, one in buffers if (size := known[one.index]) is not None}

        plans = [(region.plan, sizes_of(region)) for region in planned.regions]
        return KernelWork(plans, machine_model(host_target()))

    def _numbers(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """The sizes of a call."""
        return tuple(sizes_in(inputs, self._places))

    def largest(self, inputs: Sequence[Any]) -> list[Any]:
        """What a call hands to the compiled graph: inputs in their largest form, sizes, and what is made of these."""
        numbers = self._numbers(inputs)
        call = self._known.get(numbers) or self._learn(numbers)
        with torch.no_grad():
            return self._in_largest_form(inputs, call)[0]

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph."""
        numbers = self._numbers(inputs)
        call = self._known.get(numbers)
        if call is None:
            outputs = self._run_at_once(inputs, numbers)
            if outputs is not None:
                return outputs
            call = self._learn(numbers)
        if call.answers is not None and call.moves is not None and self._code is not None:
            outputs = call.answers()
            given = [*inputs, *call.scalars] if self._are_given else [*inputs, *numbers, *call.scalars]
            if self._code.run(given, outputs, call.moves):
                return outputs if self._in_order else [outputs[place] for place in self._outputs]
        return self._run_by_python(inputs, call)

    def _run_at_once(self, inputs: Sequence[Any], numbers: tuple[int, ...]) -> Sequence[Any] | None:
        """Run native code for sizes that have hardly come before; None where it is not to, or cannot."""
        times = self._times.get(numbers, 0) + 1
        if self._words is None or self._code is None or times >= TIMES_TO_LEARN:
            return None
        if len(self._times) >= MOST_SIZES:
            self._times.clear()
        self._times[numbers] = times
        block = self._words.take(numbers)
        if block is None:
            return None
        outputs: Sequence[Any] = block.new_results()
        given = [*inputs, *block.scalars] if self._are_given else [*inputs, *numbers, *block.scalars]
        done = bool(outputs) and self._code.run(given, outputs, block.memory)
        self._words.give_back(block)
        if not done:
            return None
        return outputs if self._in_order else [outputs[place] for place in self._outputs]

    def steady(self, inputs: Sequence[Any]) -> SteadyRun | None:
        """Give what runs calls of the sizes of these inputs, where all of it is native code; None where it is not."""
        numbers = self._numbers(inputs)
        call, code = self._known.get(numbers), self._code
        if call is None or call.answers is None or call.moves is None or code is None:
            return None
        answers, native, in_order, places = call.answers, call.answers.native, self._in_order, self._outputs
        tail = call.scalars if self._are_given else (*numbers, *call.scalars)
        run = code.steady(tail, call.moves)

        def steady(inputs: Sequence[Any]) -> Sequence[Any] | None:
            outputs = native() or answers()
            if not run(inputs, outputs):
                return None
            return outputs if in_order else [outputs[place] for place in places]

        return steady

    def bound_at(
        self, inputs: Sequence[Any], arguments: Sequence[int]
    ) -> tuple[BoundProgram, tuple[OutputType, ...], Sequence[int] | None] | None:
        """Give what runs it as it is bound now for calls of the sizes of these inputs, where all of it is native code.

        The first inputs are `arguments` of a call. Also what it makes, and where in that the roots are, if in another
        order.
        """
        numbers = self._numbers(inputs)
        call, code = self._known.get(numbers), self._code
        if call is None or call.answers is None or call.moves is None or code is None:
            return None
        tail = call.scalars if self._are_given else (*numbers, *call.scalars)
        found = code.bound(arguments, len(inputs), tail, call.moves)
        return None if found is None else (found, call.answers.types, None if self._in_order else self._outputs)

    def _in_largest_form(
        self, inputs: Sequence[Any], call: SizedCall
    ) -> tuple[list[Any], list[tuple[VaryingInput, torch.Tensor]]]:
        """What goes in, and the memory that inputs were put into."""
        own = inputs if self._are_given else [*inputs, *call.numbers]
        given = [*own, *call.scalars]
        memories = []
        for one, part in zip(self._inputs, call.places, strict=True):
            tensor = inputs[one.index]
            if one.needs_none(tensor, part):
                given[one.index] = tensor.detach()
            else:
                given[one.index] = one.take(tensor, part)
                memories.append((one, given[one.index]))
        return given, memories

    def _run_by_python(self, inputs: Sequence[Any], call: SizedCall) -> list[Any]:
        with below_autograd():  # operators may look at the grad mode, which stays as it is
            own = inputs if self._are_given else [*inputs, *call.numbers]
            given, memories = self._in_largest_form(inputs, call)
            state = generator_state() if self._draws else None
            try:
                with computing(call.work):
                    outputs = self.compiled(given)
            except (RefusedError, UnforeseenSizesError, OtherAnswerError) as error:
                if state is not None:
                    torch.set_rng_state(state)  # whoever runs the call instead draws what has been drawn again
                raise RefusedError from error
            for place, source in self._writes:
                if outputs[place] is not given[source]:
                    given[source].copy_(outputs[place])  # else machine code has written it in place
            found = [
                own[source] if source is not None else taken(outputs[place], taker, is_dense=place in self._dense)
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
        with torch.inference_mode(False), torch.no_grad():  # calls in other modes have them too
            made = self._made(*numbers)
        found = self._sized(SizedCall(numbers, self.work_for(numbers), *made))
        self._known[numbers] = found
        return found

    def _makers(self) -> Callable[..., tuple[tuple[torch.Tensor, ...], tuple[Taker, ...], tuple[Taker, ...]]]:
        """What makes the numbers for kernels, and how answers and inputs lie, for a call's sizes."""
        written = self._arithmetic()
        for value in self._of_sizes.values:
            written.compute(value, partial(_by_rule, value))
        scalars = row_of([written.value(root) for root in dict.fromkeys(self._of_sizes.roots())])
        takers = row_of([str(None) if part is None else part.taker(written) for part in self._parts])
        places = row_of([str(None) if one.part is None else one.part.taker(written) for one in self._inputs])
        return written.function(row_of((scalars, takers, places)))

    def _arithmetic(self) -> SizeArithmetic:
        return SizeArithmetic([place.value for place in self.sizes], self._of_sizes.inputs)

    def _all_words(self) -> SizeWords | None:
        """What writes the words that native code reads of sizes; None where there is none, or a number is no word."""
        code = self._code
        if code is None or tensor_functions() is None or object_layout() is None:
            return None
        written = self._arithmetic()
        roots = dict.fromkeys(self._of_sizes.roots())
        for value in self._of_sizes.values:
            if value.op == "number":
                written.compute(value, partial(_by_rule, value))
            elif value.op != "scalar" or value not in roots or value.attributes["dtype"] not in SCALARS:
                return None
        scalars = [(root.attributes["dtype"], written.value(root.operands[0])) for root in roots]
        before = [Moved(place, one.steps(), one.item).words(written) for one, place in self._moved]
        behind = [
            Moved(place, part.steps(code.kinds[at]), code.kinds[at].dtype.itemsize).words(written)
            for at, (part, place) in self._taken.items()
        ]
        if None in before or None in behind:
            return None
        results = Results(code.kinds, {at: part for at, (part, _) in self._taken.items()})
        description = written.called(code.description_for, written.size(self.work))
        moves = [move or () for move in before], [move or () for move in behind]
        return SizeWords(written, scalars, moves, (results, results.words(written)), description)

    def _sized(self, call: SizedCall) -> SizedCall:
        """Add what native code needs to calls of some sizes."""
        code = self._code
        if code is None:
            return call
        sizes = {place.value: number for place, number in zip(self.sizes, call.numbers, strict=True)}
        inwards = [(place, [step.at(sizes) for step in one.steps()], one.item) for one, place in self._moved]
        before = [place.move(steps, item) for place, steps, item in inwards if not place.is_there(steps)]
        behind, kinds = [], list(code.kinds)
        takers = dict(zip(self._outputs, call.takers, strict=True))
        for place, (part, large) in self._taken.items():
            kind, taker = code.kinds[place], takers[place]
            assert taker is not None
            kinds[place] = OutputType(taker[0], taker[1], kind.dtype)
            steps = [step.at(sizes) for step in part.steps(kind)]
            if not large.is_there(steps):
                behind.append(large.move(steps, kind.dtype.itemsize))
        moves = code.moves(before, behind, value_of(self.work, sizes))
        return call if moves is None else replace(call, answers=NewTensors(kinds), moves=moves)


def memories_of(
    graph: Graph, given: Collection[Value], growing: Mapping[Value, Value], within: Mapping[Value, Within]
) -> Iterator[VaryingInput]:
    """The memory of inputs that vary; what is `given` comes in its largest form, and needs none."""
    for index, value in enumerate(graph.inputs):
        if not isinstance(value.type, TensorType) or not varies(value.type) or value in given:
            continue
        if value in growing:
            concat = growing[value]
            yield GrowingInput(index, value.type, concat.attributes["dimension"], grown_type(concat))
        else:
            yield VaryingInput(index, value.type, within.get(value))


def parts_of_results(
    graph: Graph,
    lifted: Mapping[Value, Value],
    within: Mapping[Value, Within],
    roots: tuple[Collection[Value], Collection[Value]],
) -> dict[Value, ResultPart]:
    """How roots that vary lie in their largest form and by themselves, but those that stay in it or are inputs.

    `roots` are those that stay, and those whose strides are the same at any size.
    """
    kept, fixed = roots
    kinds: dict[Value, Any] = {root: value.type for root, value in lifted.items()}
    kinds |= {root: root.type for root in lifted if isinstance(root.type, TensorType)}
    whole = {*kept, *graph.inputs}
    return {
        root: ResultPart(kinds[root], within[root], is_fixed=root in fixed)
        for root in dict.fromkeys(graph.roots())
        if root not in whole and varies(kinds[root])
    }


def _by_rule(value: Value, *operands: Any) -> Any:
    return apply_rule(value, operands)
