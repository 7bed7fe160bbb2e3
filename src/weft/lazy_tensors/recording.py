"""Operators as they are called -> tasks of the engine: each a segment of operators that run one after the other."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import lru_cache
from threading import get_ident
from types import CodeType
from typing import Any

import torch

from weft.engine.failures import Failure, Loss, PartialFailure, has_value
from weft.errors import ExecutionError, InternalError, source_line
from weft.lazy_tensors.cores import segment_cores
from weft.lazy_tensors.learning import Form
from weft.lazy_tensors.losses import Lost, OperatorFailure
from weft.lazy_tensors.plan import Plan
from weft.lazy_tensors.points import Point, root
from weft.lazy_tensors.settings import flushing_denormals
from weft.lazy_tensors.values import Look, Memory, Value, look_of

MOST_PLANS = 64  # that end at one point
MOST_SECONDS_HERE = 1e-3  # of estimated work that the thread that waits for it does itself, while others cannot link


Place = tuple[CodeType, int]  # a function's code, and an instruction in it


class Recording:
    """The operators called since the last task was pushed, with what they take from outside."""

    __slots__ = (
        "closed", "device", "epoch", "external_looks", "external_memories", "externals", "flushes", "gradients",
        "known", "maker", "memories", "most_bytes", "most_seconds", "numbers", "places", "point", "thread", "values",
        "written",
    )  # fmt: skip

    def __init__(self, device: str, most_bytes: float, most_seconds: float, epoch: int) -> None:
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds
        self.epoch = epoch  # of what autograd graphs of its results reach
        self.device = device
        self.thread = get_ident()
        self.flushes = False  # the thread takes the smallest numbers for 0
        self.closed = False  # its operators have been pushed
        self.point = root()  # of the operator noted last
        self.gradients: list[tuple[torch.Tensor, weakref.ref[Value]]] = []  # what a backward in here gives
        self.externals: list[Any] = []  # values of earlier tasks, and ordinary tensors
        self.external_memories: list[Memory] = []
        self.external_looks: list[Look | None] = []  # what changes the look of a tensor ends the recording
        self.known: dict[int, int] = {}  # by the identity of what was taken: its number, as steps take it
        self.memories: dict[Memory, None] = {}  # of what is taken from outside
        self.written: dict[Memory, None] = {}
        self.maker: Memory | None = None
        self.numbers: list[Any] = []
        self.values: list[weakref.ref[Value]] = []
        self.places: list[Place] = []

    def external(self, thing: Any, memory: Memory, original: Any, look: Look | None = None) -> int:
        """The number of an input, from outside, as steps take it; `look` is how it looks, where that is known."""
        found = self.known.get(id(original))
        if found is None:
            found = self.known[id(original)] = ~len(self.externals)
            self.externals.append(thing)
            self.external_memories.append(memory)
            self.external_looks.append(look or (thing.look_now() if thing.__class__ is Value else look_of(thing)))
            self.memories[memory] = None
            memory.recording = self
            if thing.__class__ is Value and thing.maker is not None:
                self.memories[thing.maker] = None
        return found

    def last(self) -> Form:
        """The form of the operator noted last."""
        form = self.point.form
        assert form is not None, "the recording is not empty"
        return form

    def add(self, point: Point, numbers: Sequence[Any], place: Place) -> None:
        """Note one call."""
        if numbers:
            self.numbers += numbers
        self.point = point
        self.places.append(place)

    def memory_of(self, index: int, value: Any) -> Memory:
        """The memory of something that it took, or made: then as this value."""
        return self.external_memories[~index] if index < 0 else value.memory

    def size(self) -> int:
        """The memory it holds until it is done: what its operators make, and ordinary tensors that they only read.

        Of those a batch may be held by nothing else. Parameters, and what is changed in place, live on in any case.
        """
        found = self.point.bytes
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

    def alive(self) -> list[Value]:
        """The results that somebody holds."""
        return [value for value in (reference() for reference in self.values) if value is not None]

    def segment(self, alive: list[Value]) -> Segment:
        """What the engine is to run, for these results; the recording itself keeps nothing of it."""
        results = tuple(value.index for value in alive)
        plans = self.point.plans
        plan = plans.get(results)
        if plan is None:
            if len(plans) >= MOST_PLANS:
                plans.clear()
            plan = plans[results] = Plan(self.point.steps(), results)
        made = Segment(plan, self, alive)
        self.__init__(self.device, 0, 0, 0)  # type: ignore[misc]  # everything anew
        self.closed = True
        return made


class Segment:
    """One task: runs the plan of a recording, and gives each value its tensor."""

    __slots__ = (
        "__name__",
        "_alive",
        "_externals",
        "_flushes",
        "_gradients",
        "_memories",
        "_numbers",
        "_places",
        "_thread",
        "_written",
        "bytes",
        "changes",
        "device",
        "gives_gradients",
        "plan",
        "reads",
        "seconds",
        "writes",
    )  # fmt: skip

    def __init__(self, plan: Plan, recording: Recording, alive: list[Value]) -> None:
        self.device = recording.device
        self.bytes = recording.size()
        self.seconds = recording.point.seconds
        self._flushes = recording.flushes
        self.changes = bool(recording.written)
        self.gives_gradients = bool(recording.gradients)
        made = {value.maker or value.memory: None for value in alive}
        self.reads = [memory for memory in recording.memories if memory not in recording.written]
        self.writes = [*recording.written, *made]
        self._written = recording.written
        self._thread = recording.thread
        self.plan = plan
        held = [(leaf, reference()) for leaf, reference in recording.gradients]
        self._gradients = [(leaf, value) for leaf, value in held if value is not None]
        self._alive = alive
        self._externals = recording.externals
        self._memories = recording.external_memories
        self._numbers = recording.numbers
        self._places = recording.places
        self.__name__ = f"{len(plan.steps)} operators"

    def is_short(self) -> bool:
        """Whether it will soon be done."""
        return self.seconds < MOST_SECONDS_HERE and not self.plan.takes_long()

    def __call__(self) -> None:
        """Run it."""
        self._run([_real(item) for item in self._externals], {})

    def among_failures(self) -> None:
        """Run what does not depend on anything that failed before; the rest is lost by the same failures."""
        spoiled = self._spoiled()
        inputs = [
            (item.real if item.__class__ is Value else item) if index in spoiled else _real(item)
            for index, item in enumerate(self._externals)
        ]
        self._run(inputs, spoiled)

    def _run(self, inputs: list[Any], spoiled: dict[int, Failure]) -> None:
        try:
            with segment_cores(self.seconds), flushing_denormals(self._flushes):
                if spoiled:
                    # A view that was never made shares nothing with its memory: that is not lost with it.
                    memories = [
                        object() if real is None else memory
                        for real, memory in zip(inputs, self._memories, strict=True)
                    ]
                    results = self.plan.run_among_failures(inputs, self._numbers, memories, spoiled)
                else:
                    results = self.plan.run(inputs, self._numbers, self._memories)
        except OperatorFailure as failure:
            self._store(failure.results)
            losses = self._losses(failure)
            raise PartialFailure(losses) from next(
                (loss.cause for loss in losses if isinstance(loss.cause, Exception)), None
            )
        except ExecutionError as error:
            lost = tuple(memory.variable() for memory in self.writes)
            raise PartialFailure([Loss(error, lost, thread=self._thread)]) from error
        self._store(results)

    def _spoiled(self) -> dict[int, Failure]:
        """Which inputs failed before, and how: the earliest failure first."""
        found: dict[int, Failure] = {}
        for index, (item, memory) in enumerate(zip(self._externals, self._memories, strict=True)):
            maker = item.maker if item.__class__ is Value else None
            causes = [place.var.failure for place in (memory, maker) if place is not None and place.var is not None]
            failures = [cause for cause in causes if isinstance(cause, Failure)]
            if failures:
                found[index] = min(failures, key=_rank)
        return dict(sorted(found.items(), key=lambda item: _rank(item[1])))

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

    def _losses(self, failure: OperatorFailure) -> list[Loss]:
        """What each of the failures in this segment, or before it, spoils."""
        outside = set(self._memories)
        whole = set(range(len(self._alive))) - {place for lost in failure.losses for place in lost.results}
        for place in whole:
            self._alive[place].maker = None  # it was taken: others that were not share what makes them
        found: list[Loss] = []
        for lost in failure.losses:
            gone: list[Memory] = []
            kept: list[Memory] = []
            for place in lost.results:
                value = self._alive[place]
                own = value.memory not in outside
                if failure.results[place] is not None:
                    value.maker = None
                    kept += [value.memory] if own else []
                    continue
                if value.maker is None:
                    value.maker = Memory()  # its memory may be that of others, which are not gone for ever
                gone += [value.maker, value.memory] if own else [value.maker]
            for memory in dict.fromkeys(self._memories[index] for index in lost.inputs):
                if memory in self._written:
                    (kept if has_value(memory.variable()) else gone).append(memory)
            found.append(self._loss(lost, gone, kept))
        return found

    def _loss(self, lost: Lost, gone: Sequence[Memory], kept: Sequence[Memory]) -> Loss:
        variables = tuple(memory.variable() for memory in gone), tuple(memory.variable() for memory in kept)
        if isinstance(lost.cause, Failure):
            return Loss(lost.cause, *variables)
        step, position = self.plan.step_at(lost.place)
        title = getattr(step.form.function, "__name__", "operator")
        return Loss(lost.cause, *variables, title, place_text(*self._places[position]), self._thread)


def _rank(failure: Failure) -> tuple[int, int]:
    return failure.rank


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
