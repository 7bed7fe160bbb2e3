"""Operators as they are called -> tasks of the engine: each a segment of operators that run one after the other."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from weft.api.lazy_learning import Form
from weft.api.lazy_plan import OperatorFailure, Plan, Step
from weft.api.lazy_values import Look, Memory, Value, look_of
from weft.engine.failures import PartialFailure
from weft.errors import InternalError, source_line

_PLANS: dict[Any, Plan] = {}
MOST_PLANS = 4096


class Recording:
    """The operators called since the last task was pushed, with what they take from outside."""

    __slots__ = (
        "_positions",
        "bytes",
        "closed",
        "device",
        "external_looks",
        "external_memories",
        "externals",
        "gradients",
        "key",
        "maker",
        "memories",
        "most_bytes",
        "numbers",
        "places",
        "seconds",
        "values",
        "written",
    )

    def __init__(self, device: str, most_bytes: float) -> None:
        self.most_bytes = most_bytes
        self.device = device
        self.closed = False  # its operators have been pushed
        self.key: list[Any] = []  # the form of each operator, and what it takes
        self.gradients: list[tuple[torch.Tensor, weakref.ref[Value]]] = []  # what a backward in here gives
        self.externals: list[Any] = []  # values of earlier tasks, and ordinary tensors
        self.external_memories: list[Memory] = []
        self.external_looks: list[Look | None] = []  # what changes the look of a tensor ends the recording
        self._positions: dict[int, int] = {}
        self.memories: dict[Memory, None] = {}  # of what is taken from outside
        self.written: dict[Memory, None] = {}
        self.maker: Memory | None = None
        self.numbers: list[Any] = []
        self.values: list[weakref.ref[Value]] = []
        self.places: list[tuple[CodeType, int]] = []
        self.seconds = 0.0
        self.bytes = 0

    def external(self, thing: Any, memory: Memory, original: Any) -> int:
        """The number of an input, from outside, as steps take it."""
        found = self._positions.get(id(original))
        if found is None:
            found = self._positions[id(original)] = ~len(self.externals)
            self.externals.append(thing)
            self.external_memories.append(memory)
            self.external_looks.append(thing.look_now() if thing.__class__ is Value else look_of(thing))
            self.memories[memory] = None
            memory.recording = self
            if thing.__class__ is Value and thing.maker is not None:
                self.memories[thing.maker] = None
        return found

    def knows(self, original: Any) -> int | None:
        """The number of an input that was taken before."""
        return self._positions.get(id(original))

    def add(self, form: Form, takes: tuple[int, ...], numbers: list[Any], place: tuple[CodeType, int]) -> int:
        """Note one call; gives the number of its first new result."""
        if numbers:
            self.numbers += numbers
        self.key += (form, takes)
        self.places.append(place)
        self.seconds += form.seconds
        self.bytes += form.bytes
        return len(self.values)

    def last(self) -> Form:
        """The form of the operator noted last."""
        form: Form = self.key[-2]
        return form

    def steps(self) -> list[Step]:
        """The operators noted so far; made when asked for, as most recordings have the structure of an earlier one."""
        steps: list[Step] = []
        results = numbers = 0
        for form, takes in zip(self.key[::2], self.key[1::2], strict=True):
            slots = tuple(range(numbers, numbers := numbers + form.number_count()))
            following = iter(range(results, results := results + form.made))
            makes = tuple(-1 if output.same >= 0 else next(following) for output in form.outputs)
            steps.append(Step(form, takes, slots, makes))
        return steps

    def size(self) -> int:
        """The memory it holds until it is done: what its operators make, and ordinary tensors that they only read.

        Of those a batch may be held by nothing else. Parameters, and what is changed in place, live on in any case.
        """
        found = self.bytes
        for thing, memory, look in zip(self.externals, self.external_memories, self.external_looks, strict=True):
            if thing.__class__ is torch.Tensor and look is not None and memory not in self.written:
                found += look.bytes
        return found

    def hold(self, value: Value) -> None:
        """Remember the next result for as long as somebody holds it."""
        if value.memory in self.memories:
            if self.maker is None:
                self.maker = Memory()
            value.maker = self.maker
        self.values.append(weakref.ref(value))

    def segment(self) -> Segment:
        """What the engine is to run; the recording itself keeps nothing of it."""
        alive = [value for value in (reference() for reference in self.values) if value is not None]
        results = tuple(value.index for value in alive)
        key = (tuple(self.key), results, tuple(map(type, self.numbers)))
        plan = _PLANS.get(key)
        if plan is None:
            if len(_PLANS) >= MOST_PLANS:
                _PLANS.clear()
            plan = _PLANS[key] = Plan(self.steps(), results)
        made = Segment(plan, self, alive)
        self.__init__(self.device, 0)  # type: ignore[misc]  # everything anew
        self.closed = True
        return made


class Segment:
    """One task: runs the plan of a recording, and gives each value its tensor."""

    __slots__ = (
        "__name__",
        "_alive",
        "_externals",
        "_gradients",
        "_memories",
        "_numbers",
        "_places",
        "_plan",
        "bytes",
        "changes",
        "device",
        "gives_gradients",
        "reads",
        "writes",
    )  # fmt: skip

    def __init__(self, plan: Plan, recording: Recording, alive: list[Value]) -> None:
        self.device = recording.device
        self.bytes = recording.size()
        self.changes = bool(recording.written)
        self.gives_gradients = bool(recording.gradients)
        made = {value.maker or value.memory: None for value in alive}
        self.reads = [memory for memory in recording.memories if memory not in recording.written]
        self.writes = [*recording.written, *made]
        self._plan = plan
        held = [(leaf, reference()) for leaf, reference in recording.gradients]
        self._gradients = [(leaf, value) for leaf, value in held if value is not None]
        self._alive = alive
        self._externals = recording.externals
        self._memories = recording.external_memories
        self._numbers = recording.numbers
        self._places = recording.places
        self.__name__ = f"{len(plan.steps)} operators"

    def __call__(self) -> None:
        """Run it."""
        inputs = [_real(item) for item in self._externals]
        try:
            results = self._plan.run(inputs, self._numbers)
        except OperatorFailure as failure:
            self._store(failure.results)
            raise self._explained(failure) from failure.error
        self._store(results)

    def _store(self, results: Sequence[Any]) -> None:
        for value, real in zip(self._alive, results, strict=True):
            if real is None:
                continue
            if look_of(real) is not value.look:
                raise InternalError(
                    f"a queued operator gave {_shown(look_of(real))} in the place of {_shown(value.look)}"
                )
            value.real = real
        for leaf, value in self._gradients:
            leaf.grad = value.real

    def _explained(self, failure: OperatorFailure) -> PartialFailure:
        step = self._plan.all_steps[failure.position]
        lost = [
            value.maker or value.memory
            for value, real in zip(self._alive, failure.results, strict=True)
            if real is None
        ]
        lost += [self._memories[index] for index in failure.inputs]
        return PartialFailure(
            failure.error,
            [memory.variable() for memory in dict.fromkeys(lost)],
            getattr(step.form.function, "__name__", "operator"),
            place_text(*self._places[failure.position]),
        )


def _shown(look: Look | None) -> str:
    return (
        "another kind of tensor"
        if look is None
        else f"{tuple(look.shape)} {look.strides} {look.dtype} {look.requires_grad}"
    )


@lru_cache(maxsize=4096)  # the same lines queue work again and again
def place_text(code: CodeType, instruction: int) -> str:
    """A place in a function's code, in words."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return source_line(code.co_filename, line)
    return source_line(code.co_filename, code.co_firstlineno)


def _real(item: Any) -> torch.Tensor:
    if item.__class__ is not Value:
        return item  # type: ignore[no-any-return]
    if item.real is None:
        raise InternalError("a task ran before what it takes was computed")
    return item.real
