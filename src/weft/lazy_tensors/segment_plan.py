"""Run the operators of a segment: one by one at first, as a compiled program later.

A plan is for one structure: the operators' schemas, where each takes its tensors from, and which results somebody still
held when the segment was queued. What nobody held and nothing written depends on is not computed. A backward is a step
like any other, so that forward, backward and update are one program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from time import perf_counter
from typing import Any, NoReturn

import torch

from weft.codegen.torch_functions import version_of
from weft.devices import cpu_count
from weft.errors import ExecutionError, UnsupportedError, WeftError
from weft.lazy_tensors.failures import Losses
from weft.lazy_tensors.schema import ArgumentSlot, CallSchema, ResultSchema
from weft.lazy_tensors.tensor import TensorMetadata, flat
from weft.programs.program import Program
from weft.runtime.compiled_graph import IN_PLACE
from weft.runtime.differentiable import Replay
from weft.runtime.memory_layout import probed
from weft.trace.interception.capture import storage_key
from weft.trace.python_state.reachable import find_state
from weft.trace.python_state.trees import TensorLeaf
from weft.trace.request import Request
from weft.trace.several_traces import trace_program
from weft.trace.signature import Key, memory_key
from weft.trace.traced import Traced

MOST_PROGRAMS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _SegmentProgram:
    """A program, and what must be as it was when it was traced."""

    program: Program
    arguments: tuple[int, ...]
    numbers: tuple[int, ...]
    fixed: tuple[tuple[int, Any], ...]  # numbers that the program was made for
    written: frozenset[int] | None  # None: it depends on where tensors start in memory
    memory: Key | None  # None: it does not matter which tensors share memory

    def fits(self, tensors: list[torch.Tensor], numbers: Sequence[Any]) -> bool:
        """Whether it computes what the function would."""
        for position, value in self.fixed:
            if numbers[position] != value:
                return False
        return self.memory is None or memory_key(tensors, self.written) == self.memory


class SegmentPrograms:
    """Runs a function as programs. Its callers see to it that the tensors' metadata never differs, nor modes."""

    def __init__(self, function: Callable[[list[torch.Tensor], list[Any]], list[Any]]) -> None:
        self._function = function
        self._programs: list[_SegmentProgram] = []
        # On the other side: another thread that runs the same segment and traces it; it waits for nobody here.
        self._lock = RLock()

    def run(self, tensors: list[torch.Tensor], numbers: list[Any]) -> Sequence[Any]:
        """Run the program of these arguments; trace one if there is none."""
        for program in self._programs:
            if program.fits(tensors, numbers):
                break
        else:
            program = self._trace(tensors, numbers)
        inputs = [*(tensors[index] for index in program.arguments), *(numbers[index] for index in program.numbers)]
        return program.program.run(inputs)  # type: ignore[no-any-return]

    def _trace(self, tensors: list[torch.Tensor], numbers: list[Any]) -> _SegmentProgram:
        with self._lock:
            if len(self._programs) >= MOST_PROGRAMS:
                raise UnsupportedError("a lazy segment's numbers or memory change in ways that need many programs")
            count = len(tensors)
            request = Request(
                self._function,
                (tensors, numbers),
                {},
                "lazy_segment",
                find_state(),
                tuple(
                    f"{name}{index}" for name, items in (("t", tensors), ("n", numbers)) for index in range(len(items))
                ),
                frozenset(range(count, count + len(numbers))),
                draws=False,  # random operators are never queued, and other threads draw while this one traces
            )
            try:
                traced = trace_program(request)
            except WeftError:
                raise
            except Exception as error:
                raise UnsupportedError("a lazy segment cannot be traced", why=str(error)) from error
            found = _checked(traced, tensors, numbers, self._lock)
            if len(found.arguments) == count:
                found.program.replay_by(self._replay(traced.leaves, len(traced.graph.results), found, numbers))
            found.program.prepare_backward()  # in the backward itself it is too late to run the segment otherwise
            self._programs.append(found)
            return found

    def _replay(self, leaves: Sequence[Any], count: int, program: _SegmentProgram, numbers: list[Any]) -> Replay:
        """What calls the function again on a program's inputs, and gives the results of its graph."""
        places = {leaf.index: place for place, leaf in enumerate(leaves) if isinstance(leaf, TensorLeaf)}

        def replay(inputs: Sequence[Any]) -> Sequence[Any]:
            tensors = dict(zip(program.arguments, inputs, strict=False))
            free = dict(zip(program.numbers, inputs[len(tensors) :], strict=True))
            results = self._function(
                [tensors[place] for place in range(len(tensors))],
                [free.get(place, number) for place, number in enumerate(numbers)],
            )
            return [results[places[index]] if index in places else None for index in range(count)]

        return replay


def _checked(traced: Traced, tensors: list[torch.Tensor], numbers: list[Any], lock: RLock) -> _SegmentProgram:
    count = len(tensors)
    arguments = tuple(entry.argument for entry in traced.inputs if entry.argument is not None)
    if len(arguments) != len(traced.inputs) or any(index >= count for index in arguments):
        raise UnsupportedError("a lazy segment reaches a tensor that it was not given")
    free = tuple(entry.argument - count for entry in traced.numbers if entry.argument is not None)
    written = {write.input for write in traced.graph.writes}
    places = frozenset(
        entry.argument for entry in traced.inputs if entry.value in written and entry.argument is not None
    )
    compared = None if traced.depends_on_offsets else places
    # Parameters change rarely, if nobody trains: what is made of their elements is kept.
    as_weights = replace(
        traced,
        inputs=tuple(
            replace(entry, argument=None) if isinstance(entry.tensor, torch.nn.Parameter) else entry
            for entry in traced.inputs
        ),
    )
    return _SegmentProgram(
        Program(as_weights, lock),
        arguments,
        free,
        tuple((index, number) for index, number in enumerate(numbers) if index not in free),
        compared,
        memory_key(tensors, compared) if written or traced.depends_on_offsets else None,
    )


logger = logging.getLogger("weft")
COMPILED_FROM = 2  # the run of a structure, counted from 1, before which it is compiled at the earliest
COMPILED_AFTER = 1e-3  # seconds of runs: to compile takes a hundred times as long
MEASURED = 8  # runs by operators of a structure that is compiled later than at the earliest: the first are slower


@dataclass(slots=True, eq=False)  # not frozen: one is made at each call, and that would take twice as long
class SegmentStep:
    """One operator: its schema, its tensors (a result's number, or ~number of an input), its numbers, what it makes."""

    schema: CallSchema
    operands: tuple[int, ...]
    numbers: tuple[int, ...]
    result_numbers: tuple[int, ...]  # the number of each result, -1 for one that is an argument


class SegmentPlan:
    """Runs all recordings of one structure: takes their inputs and numbers, gives the results that were held."""

    def __init__(self, steps: Sequence[SegmentStep], results: Sequence[int]) -> None:
        self.all_steps = tuple(steps)
        self.results = tuple(results)
        self.positions = _needed(self.all_steps, self.results)
        self.steps = tuple(self.all_steps[position] for position in self.positions)
        self._dying = _last_uses(self.steps, self.results)
        self._connected = _connected(self.steps, self.results)
        self._changed = _changed(self.steps)
        self.runs = 0
        self.seconds = sum(step.schema.seconds for step in self.steps)  # of estimated work
        self.operator_seconds = 0.0  # the least that a run took by PyTorch's operators, and as a program
        self.program_seconds = 0.0
        self.compiled = False
        self.loses = False  # to queue it takes longer than its operators
        self._freed: tuple[int, ...] = ()
        self._programs: dict[int, SegmentPrograms] = {}  # by the cores that they are made for
        self._refused = False
        self._detach = False

        self._look_at_backwards()

    def _look_at_backwards(self) -> None:
        """Where a backward is among the steps, a program gives results whose graph is used up."""
        backwards = [step for step in self.steps if step.schema.function is gradients_of]
        if not backwards:
            return
        used: set[int] = set()
        for step in backwards:
            used |= upstream(self.steps, step.operands[0])
            self._connected |= {~index for index in step.operands[1:] if index < 0}
        metadata_of_result = {
            number: output.metadata
            for step in self.steps
            for number, output in zip(step.result_numbers, step.schema.outputs, strict=True)
        }
        carrying = [
            place
            for place, number in enumerate(self.results)
            if (metadata := metadata_of_result[number]) and metadata.requires_grad
        ]
        self._freed = tuple(carrying)
        # A result that another backward may still go through keeps its graph: the operators have to run one by one.
        self._refused = any(self.results[place] not in used for place in carrying)
        self._detach = True

    def by_operators(self) -> bool:
        """Whether the next run goes operator by operator."""
        early = self.runs + 1 < COMPILED_FROM or (not self._programs and self._is_short())
        return early or self._refused or not self.steps

    def _is_short(self) -> bool:
        """Whether it is not yet worth a compilation."""
        if self.seconds >= COMPILED_AFTER:
            return False
        return self.loses or self.runs < MEASURED or self.runs * self.operator_seconds < COMPILED_AFTER

    def takes_long(self) -> bool:
        """Whether the next run may have to compile."""
        return not self.by_operators() and not self.compiled

    def run_among_failures(
        self, inputs: Sequence[Any], numbers: Sequence[Any], storages: Sequence[Any], poisoned: Mapping[int, Any]
    ) -> Sequence[Any]:
        """Run what does not depend on the inputs that are poisoned; tells of the rest as failures of operators do."""
        return self._by_operators(inputs, numbers, storages, Losses(self.steps, storages, poisoned))

    def run(self, inputs: Sequence[torch.Tensor], numbers: Sequence[Any], storages: Sequence[Any]) -> Sequence[Any]:
        """Run it; `memories` are those of the inputs. What fails is told as the failure of operators."""
        by_operators = self.by_operators()
        self.runs += 1
        if by_operators:
            start = perf_counter()
            results: Sequence[Any] = self._by_operators(inputs, numbers, storages)
            self.operator_seconds = _least(self.operator_seconds, perf_counter() - start)
            return results
        before = self._written(inputs)
        try:
            start = perf_counter()
            results = self._as_program(inputs, numbers)
            if self.compiled:  # else this run has compiled it
                self.program_seconds = _least(self.program_seconds, perf_counter() - start)
            self.compiled = True
            return results
        except Exception as error:
            if self._written(inputs) != before:
                raise ExecutionError(
                    f"{len(self.steps)} operators that run as one program failed after it had changed tensors in place",
                    why=f"{type(error).__name__}: {error}",
                ) from error
            return self._after(error, inputs, numbers, storages)

    def _after(
        self, error: Exception, inputs: Sequence[torch.Tensor], numbers: Sequence[Any], storages: Sequence[Any]
    ) -> Sequence[Any]:
        """What a program that failed before it changed anything should have given: the operators run one by one.

        That tells which of them fails, and computes what does not depend on it.
        """
        if isinstance(error, UnsupportedError):
            logger.debug("a lazy segment stays a list of operators: %s", error)
            self._refused = True
            return self._by_operators(inputs, numbers, storages)
        results = self._by_operators(inputs, numbers, storages)
        # No operator fails, so it was the program's fault, or the machine's: that is not to pass in silence.
        logger.warning("weft: %d operators failed as one program: %s: %s", len(self.steps), type(error).__name__, error)
        return results

    def _as_program(self, inputs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Sequence[Any]:
        # Autograd must not reach through a program to what its results do not depend on.
        given = [
            tensor if index in self._connected or not tensor.requires_grad else tensor.detach()
            for index, tensor in enumerate(inputs)
        ]
        count = cpu_count()
        programs = self._programs.get(count) or self._programs.setdefault(count, SegmentPrograms(self._traceable))
        results = programs.run(given, list(numbers))
        return [freed(result) if place in self._freed else result for place, result in enumerate(results)]

    def _written(self, inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Numbers that grow when inputs are changed."""
        return (IN_PLACE.regions, *(version_of(inputs[index]) for index in self._changed)) if self._changed else ()

    def _traceable(self, inputs: list[torch.Tensor], numbers: list[Any]) -> list[Any]:
        made: dict[int, Any] = {}
        for step in self.steps:
            _keep(step, _call(step, made, inputs, numbers), made)
        results = [made[index] for index in self.results]
        return [result.detach() for result in results] if self._detach else results

    def _by_operators(
        self, inputs: Sequence[Any], numbers: Sequence[Any], storages: Sequence[Any], losses: Losses | None = None
    ) -> list[Any]:
        made: dict[int, Any] = {}
        for place, step in enumerate(self.steps):
            if losses is not None and losses.skips(step, _taken(step, made, inputs)):
                continue
            try:
                _keep(step, _call(step, made, inputs, numbers), made)
            except Exception as error:  # noqa: BLE001  # whatever it is, whoever waits for the result is told
                losses = losses or self._losses(place, storages)
                losses.fail(place, error)
            if losses is None:
                for index in self._dying[place]:
                    del made[index]
        if losses is not None:
            losses.tell(made, self.results)
        return [made[index] for index in self.results]

    def _losses(self, place: int, storages: Sequence[Any]) -> Losses:
        """None so far: the steps before this place have run."""
        losses = Losses(self.steps, storages, {})
        for step in self.steps[:place]:
            losses.share(step)
        return losses

    def step_at(self, place: int) -> tuple[SegmentStep, int]:
        """The step at a place among those that run, and its position among all that were called."""
        return self.steps[place], self.positions[place]


def _least(known: float, found: float) -> float:
    return min(known, found) if known else found


def _call(step: SegmentStep, made: dict[int, Any], inputs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
    schema = step.schema
    tensors = _taken(step, made, inputs)
    given = [numbers[index] for index in step.numbers]
    if torch.is_grad_enabled() is schema.grad:
        return schema.call(tensors, given)
    with torch.set_grad_enabled(schema.grad):
        return schema.call(tensors, given)


def _taken(step: SegmentStep, made: dict[int, Any], inputs: Sequence[Any]) -> list[Any]:
    """The tensors that a step takes; None for those that a failure kept from being made."""
    return [made.get(index) if index >= 0 else inputs[~index] for index in step.operands]


def _keep(step: SegmentStep, result: Any, made: dict[int, Any]) -> None:
    if step.result_numbers:
        pairs = zip(step.result_numbers, flat(result), strict=True)
        made.update((index, item) for index, item in pairs if index >= 0)


def _needed(steps: Sequence[SegmentStep], results: Sequence[int]) -> tuple[int, ...]:
    """The steps that results and writes depend on."""
    wanted = set(results)
    positions = []
    for position in range(len(steps) - 1, -1, -1):
        step = steps[position]
        if step.schema.written or any(index in wanted for index in step.result_numbers):
            positions.append(position)
            wanted.update(index for index in step.operands if index >= 0)
    return tuple(reversed(positions))


def _connected(steps: Sequence[SegmentStep], results: Sequence[int]) -> frozenset[int]:
    """The inputs that a backward from some result gives gradients to."""
    reached = set(results)
    for step in reversed(steps):
        for number, output in zip(step.result_numbers, step.schema.outputs, strict=True):
            # What is changed in place goes on under the number of the argument.
            own = number if number >= 0 else step.operands[output.same]
            if own in reached:
                reached.update(step.operands[index] for index in output.connected)
    return frozenset(~index for index in reached if index < 0)


def _changed(steps: Sequence[SegmentStep]) -> tuple[int, ...]:
    """The inputs that are changed in place, themselves or through views."""
    sources: dict[int, int] = {}
    found: set[int] = set()
    for step in steps:
        for number, output in zip(step.result_numbers, step.schema.outputs, strict=True):
            if number >= 0 and output.view_of >= 0:
                source = step.operands[output.view_of]
                sources[number] = sources.get(source, source)
        found.update(sources.get(step.operands[place], step.operands[place]) for place in step.schema.written)
    return tuple(sorted(~index for index in found if index < 0))


def _last_uses(steps: Sequence[SegmentStep], results: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """After each step, the results that nothing later takes."""
    kept = set(results)
    dying: list[tuple[int, ...]] = []
    for step in reversed(steps):
        here = {index for index in (*step.operands, *step.result_numbers) if index >= 0} - kept
        kept |= here
        dying.append(tuple(sorted(here)))
    return tuple(reversed(dying))


def gradients_of(loss: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of some leaves, each in memory of its own, laid out as `backward` leaves them."""
    found: list[torch.Tensor] = []
    for gradient in torch.autograd.grad(loss, leaves):
        laid_out = gradient.contiguous()
        # Two leaves may get one and the same tensor, which whoever changes one gradient would change for both.
        shared = any(storage_key(laid_out) == storage_key(other) for other in found)
        found.append(laid_out.clone() if shared else laid_out)
    return tuple(found)


_SCHEMAS: dict[tuple[TensorMetadata, ...], CallSchema] = {}


def backward_schema(metadata: tuple[TensorMetadata, ...]) -> CallSchema:
    """The schema of a backward that gives gradients of this metadata."""
    found = _SCHEMAS.get(metadata)
    if found is None:
        outputs = tuple(ResultSchema(metadata) for metadata in metadata)
        args = [ArgumentSlot(index) for index in range(len(metadata) + 1)]
        found = CallSchema(gradients_of, args, {}, grad=True, outputs=outputs, kind=tuple, made=len(metadata))
        _SCHEMAS[metadata] = found
    return found


class _Freed(torch.autograd.Function):
    """The end of what is left of an autograd graph after its backward: nothing can go through it again."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """Give the tensor, tied to what requires a gradient."""
        del context, anchor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *tangents: Any) -> NoReturn:
        """Raise what eager raises."""
        del context, tangents
        raise RuntimeError(
            "Trying to backward through the graph a second time. Specify retain_graph=True at the first backward"
        )


def freed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose graph has been used up by a backward."""
    with torch.enable_grad():
        return _Freed.apply(tensor, _anchor())  # type: ignore[no-untyped-call, no-any-return]


@probed
def _anchor() -> torch.Tensor:
    """A leaf that no gradient ever reaches."""
    return torch.zeros((), requires_grad=True)


def upstream(steps: Sequence[Any], loss: int) -> set[int]:
    """The results that a loss was computed from, itself among them."""
    found = {loss}
    for step in reversed(steps):
        for number, output in zip(step.result_numbers, step.schema.outputs, strict=True):
            own = number if number >= 0 else step.operands[output.same]
            if own in found:
                found.update(step.operands[index] for index in output.connected)
    return found
