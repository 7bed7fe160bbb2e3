"""The structure of a recording -> how to run it: by PyTorch's operators at first, as a compiled program later.

A structure is the forms of the operators, where each takes its tensors from, and which results somebody still held
when it was queued. What nobody held and nothing written depends on is not computed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from weft.codegen.torch_functions import version_of
from weft.devices import cpu_count
from weft.errors import ExecutionError, UnsupportedError
from weft.lazy_tensors.backward import freed, gradients_of, upstream
from weft.lazy_tensors.learning import Form, flat
from weft.lazy_tensors.losses import Losses
from weft.lazy_tensors.program import LazyPrograms
from weft.runtime.refused import IN_PLACE

logger = logging.getLogger("weft")
COMPILED_FROM = 2  # the run of a structure, counted from 1, before which it is compiled at the earliest
COMPILED_AFTER = 1e-3  # seconds of runs: to compile takes a hundred times as long
MEASURED = 8  # runs by operators of a structure that is compiled later than at the earliest: the first are slower


@dataclass(slots=True, eq=False)  # not frozen: one is made at each call, and that would take twice as long
class Step:
    """One operator: its form, its tensors (a result's number, or ~number of an input), its numbers, what it makes."""

    form: Form
    takes: tuple[int, ...]
    numbers: tuple[int, ...]
    makes: tuple[int, ...]  # the number of each result, -1 for one that is an argument


class Plan:
    """Runs all recordings of one structure: takes their inputs and numbers, gives the results that were held."""

    def __init__(self, steps: Sequence[Step], results: Sequence[int]) -> None:
        self.all_steps = tuple(steps)
        self.results = tuple(results)
        self.positions = _needed(self.all_steps, self.results)
        self.steps = tuple(self.all_steps[position] for position in self.positions)
        self._dying = _last_uses(self.steps, self.results)
        self._connected = _connected(self.steps, self.results)
        self._changed = _changed(self.steps)
        self.runs = 0
        self.seconds = sum(step.form.seconds for step in self.steps)  # of estimated work
        self.operator_seconds = 0.0  # the least that a run took by PyTorch's operators, and as a program
        self.program_seconds = 0.0
        self.compiled = False
        self.loses = False  # to queue it takes longer than its operators
        self._freed: tuple[int, ...] = ()
        self._programs: dict[int, LazyPrograms] = {}  # by the cores that they are made for
        self._refused = False
        self._detach = False

        self._look_at_backwards()

    def _look_at_backwards(self) -> None:
        """Where a backward is among the steps, a program gives results whose graph is used up."""
        backwards = [step for step in self.steps if step.form.function is gradients_of]
        if not backwards:
            return
        used: set[int] = set()
        for step in backwards:
            used |= upstream(self.steps, step.takes[0])
            self._connected |= {~index for index in step.takes[1:] if index < 0}
        looks = {
            number: output.look
            for step in self.steps
            for number, output in zip(step.makes, step.form.outputs, strict=True)
        }
        carrying = [
            place for place, number in enumerate(self.results) if (look := looks[number]) and look.requires_grad
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
        self, inputs: Sequence[Any], numbers: Sequence[Any], memories: Sequence[Any], spoiled: Mapping[int, Any]
    ) -> Sequence[Any]:
        """Run what does not depend on the inputs that are spoiled; tells of the rest as failures of operators do."""
        return self._by_operators(inputs, numbers, memories, Losses(self.steps, memories, spoiled))

    def run(self, inputs: Sequence[torch.Tensor], numbers: Sequence[Any], memories: Sequence[Any]) -> Sequence[Any]:
        """Run it; `memories` are those of the inputs. What fails is told as the failure of operators."""
        by_operators = self.by_operators()
        self.runs += 1
        if by_operators:
            start = perf_counter()
            results: Sequence[Any] = self._by_operators(inputs, numbers, memories)
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
            return self._after(error, inputs, numbers, memories)

    def _after(
        self, error: Exception, inputs: Sequence[torch.Tensor], numbers: Sequence[Any], memories: Sequence[Any]
    ) -> Sequence[Any]:
        """What a program that failed before it changed anything should have given: the operators run one by one.

        That tells which of them fails, and computes what does not depend on it.
        """
        if isinstance(error, UnsupportedError):
            logger.debug("a lazy segment stays a list of operators: %s", error)
            self._refused = True
            return self._by_operators(inputs, numbers, memories)
        results = self._by_operators(inputs, numbers, memories)
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
        programs = self._programs.get(count) or self._programs.setdefault(count, LazyPrograms(self._traceable))
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
        self, inputs: Sequence[Any], numbers: Sequence[Any], memories: Sequence[Any], losses: Losses | None = None
    ) -> list[Any]:
        made: dict[int, Any] = {}
        for place, step in enumerate(self.steps):
            if losses is not None and losses.skips(step, _taken(step, made, inputs)):
                continue
            try:
                _keep(step, _call(step, made, inputs, numbers), made)
            except Exception as error:  # noqa: BLE001  # whatever it is, whoever waits for the result is told
                losses = losses or self._losses(place, memories)
                losses.fail(place, error)
            if losses is None:
                for index in self._dying[place]:
                    del made[index]
        if losses is not None:
            losses.tell(made, self.results)
        return [made[index] for index in self.results]

    def _losses(self, place: int, memories: Sequence[Any]) -> Losses:
        """None so far: the steps before this place have run."""
        losses = Losses(self.steps, memories, {})
        for step in self.steps[:place]:
            losses.share(step)
        return losses

    def step_at(self, place: int) -> tuple[Step, int]:
        """The step at a place among those that run, and its position among all that were called."""
        return self.steps[place], self.positions[place]


def _least(known: float, found: float) -> float:
    return min(known, found) if known else found


def _call(step: Step, made: dict[int, Any], inputs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
    form = step.form
    tensors = _taken(step, made, inputs)
    given = [numbers[index] for index in step.numbers]
    if torch.is_grad_enabled() is form.grad:
        return form.call(tensors, given)
    with torch.set_grad_enabled(form.grad):
        return form.call(tensors, given)


def _taken(step: Step, made: dict[int, Any], inputs: Sequence[Any]) -> list[Any]:
    """The tensors that a step takes; None for those that a failure kept from being made."""
    return [made.get(index) if index >= 0 else inputs[~index] for index in step.takes]


def _keep(step: Step, result: Any, made: dict[int, Any]) -> None:
    if step.makes:
        pairs = zip(step.makes, flat(result), strict=True)
        made.update((index, item) for index, item in pairs if index >= 0)


def _needed(steps: Sequence[Step], results: Sequence[int]) -> tuple[int, ...]:
    """The steps that results and writes depend on."""
    wanted = set(results)
    positions = []
    for position in range(len(steps) - 1, -1, -1):
        step = steps[position]
        if step.form.written or any(index in wanted for index in step.makes):
            positions.append(position)
            wanted.update(index for index in step.takes if index >= 0)
    return tuple(reversed(positions))


def _connected(steps: Sequence[Step], results: Sequence[int]) -> frozenset[int]:
    """The inputs that a backward from some result gives gradients to."""
    reached = set(results)
    for step in reversed(steps):
        for number, output in zip(step.makes, step.form.outputs, strict=True):
            # What is changed in place goes on under the number of the argument.
            own = number if number >= 0 else step.takes[output.same]
            if own in reached:
                reached.update(step.takes[index] for index in output.connected)
    return frozenset(~index for index in reached if index < 0)


def _changed(steps: Sequence[Step]) -> tuple[int, ...]:
    """The inputs that are changed in place, themselves or through views."""
    sources: dict[int, int] = {}
    found: set[int] = set()
    for step in steps:
        for number, output in zip(step.makes, step.form.outputs, strict=True):
            if number >= 0 and output.view_of >= 0:
                source = step.takes[output.view_of]
                sources[number] = sources.get(source, source)
        found.update(sources.get(step.takes[place], step.takes[place]) for place in step.form.written)
    return tuple(sorted(~index for index in found if index < 0))


def _last_uses(steps: Sequence[Step], results: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """After each step, the results that nothing later takes."""
    kept = set(results)
    dying: list[tuple[int, ...]] = []
    for step in reversed(steps):
        here = {index for index in (*step.takes, *step.makes) if index >= 0} - kept
        kept |= here
        dying.append(tuple(sorted(here)))
    return tuple(reversed(dying))
