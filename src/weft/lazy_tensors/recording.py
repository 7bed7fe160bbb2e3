"""Record operators as they are called, and run what was recorded as one task of the engine."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch

from weft.engine import Engine, Placement, Var
from weft.engine.failures import Damage, Failure, PartialFailure, has_value
from weft.errors import ExecutionError, InternalError
from weft.lazy_tensors.failures import Lost, OperatorFailure
from weft.lazy_tensors.schema import CallSchema
from weft.lazy_tensors.segment_plan import SegmentPlan
from weft.lazy_tensors.settings import flushing_denormals
from weft.lazy_tensors.tasks import Place, place_text, push, segment_cores
from weft.lazy_tensors.tensor import LazyStorage, LazyValue, TensorMetadata, metadata_of
from weft.lazy_tensors.trie import TrieNode, root

MOST_PLANS = 64  # that end at one node
MOST_SECONDS_HERE = 1e-3  # of estimated work that the thread that waits for it does itself, while others cannot link


class Recording:
    """The operators called since the last task was pushed, with what they take from outside."""

    def __init__(self, device: str, most_bytes: float, most_seconds: float, epoch: int) -> None:
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds
        self.epoch = epoch  # of what autograd graphs of its results reach
        self.device = device
        self.thread = get_ident()
        self.flushes = False  # the thread takes the smallest numbers for 0
        self.closed = False  # its operators have been pushed
        self.node = root()  # of the operator noted last
        self.gradients: list[tuple[torch.Tensor, weakref.ref[LazyValue]]] = []  # what a backward in here gives
        self.inputs: list[Any] = []  # values of earlier tasks, and ordinary tensors
        self.input_storages: list[LazyStorage] = []
        # What changes the metadata of a tensor ends the recording.
        self.input_metadata: list[TensorMetadata | None] = []
        self.operand_numbers: dict[int, int] = {}  # by the identity of what was taken: its number, as steps take it
        self.storages: dict[LazyStorage, None] = {}  # of what is taken from outside
        self.written: dict[LazyStorage, None] = {}
        self.producer: LazyStorage | None = None
        self.numbers: list[Any] = []
        self.values: list[weakref.ref[LazyValue]] = []
        self.places: list[Place] = []

    def add_input(self, thing: Any, storage: LazyStorage, original: Any, metadata: TensorMetadata | None = None) -> int:
        """The number of an input, from outside, as steps take it; `metadata` is its own, where that is known."""
        found = self.operand_numbers.get(id(original))
        if found is None:
            found = self.operand_numbers[id(original)] = ~len(self.inputs)
            self.inputs.append(thing)
            self.input_storages.append(storage)
            self.input_metadata.append(
                metadata or (thing.current_metadata() if thing.__class__ is LazyValue else metadata_of(thing))
            )
            self.storages[storage] = None
            storage.recording = self
            if thing.__class__ is LazyValue and thing.producer is not None:
                self.storages[thing.producer] = None
        return found

    def last(self) -> CallSchema:
        """The schema of the operator recorded last."""
        schema = self.node.schema
        assert schema is not None, "the recording is not empty"
        return schema

    def add(self, node: TrieNode, numbers: Sequence[Any], place: Place) -> None:
        """Note one call."""
        if numbers:
            self.numbers += numbers
        self.node = node
        self.places.append(place)

    def storage_of(self, index: int, value: Any) -> LazyStorage:
        """The memory of something that it took, or made: then as this value."""
        return self.input_storages[~index] if index < 0 else value.storage

    def size(self) -> int:
        """The memory it holds until it is done: what its operators make, and ordinary tensors that they only read.

        Of those a batch may be held by nothing else. Parameters, and what is changed in place, live on in any case.
        """
        found = self.node.bytes
        for thing, storage, metadata in zip(self.inputs, self.input_storages, self.input_metadata, strict=True):
            if thing.__class__ is torch.Tensor and metadata is not None and storage not in self.written:
                found += metadata.bytes
        return found

    def hold(self, value: LazyValue) -> None:
        """Remember the next result for as long as somebody holds it."""
        if value.storage in self.storages:
            if self.producer is None:
                self.producer = LazyStorage()
            value.producer = self.producer
        self.values.append(weakref.ref(value))

    def alive(self) -> list[LazyValue]:
        """The results that somebody holds."""
        return [value for value in (reference() for reference in self.values) if value is not None]

    def segment(self, alive: list[LazyValue]) -> Segment:
        """What the engine is to run, for these results; the recording itself keeps nothing of it."""
        results = tuple(value.index for value in alive)
        plans = self.node.plans
        plan = plans.get(results)
        if plan is None:
            if len(plans) >= MOST_PLANS:
                plans.clear()
            plan = plans[results] = SegmentPlan(self.node.steps(), results)
        made = Segment(plan, self, alive)
        self.__init__(self.device, 0, 0, 0)  # type: ignore[misc]  # everything anew
        self.closed = True
        return made


class Segment:
    """One task: runs the plan of a recording, and gives each value its tensor."""

    def __init__(self, plan: SegmentPlan, recording: Recording, alive: list[LazyValue]) -> None:
        self.device = recording.device
        self.bytes = recording.size()
        self.seconds = recording.node.seconds
        self._flushes = recording.flushes
        self.changes = bool(recording.written)
        self.gives_gradients = bool(recording.gradients)
        made = {value.producer or value.storage: None for value in alive}
        self.reads = [storage for storage in recording.storages if storage not in recording.written]
        self.writes = [*recording.written, *made]
        self._written = recording.written
        self._thread = recording.thread
        self.plan = plan
        held = [(leaf, reference()) for leaf, reference in recording.gradients]
        self._gradients = [(leaf, value) for leaf, value in held if value is not None]
        self._alive = alive
        self._inputs = recording.inputs
        self._storages = recording.input_storages
        self._numbers = recording.numbers
        self._places = recording.places
        self.__name__ = f"{len(plan.steps)} operators"

    def push(self, gradients: Var) -> None:
        """Push it to the engine; `gradients` orders what gives gradients and what changes tensors that it may read."""
        reads = [storage.variable() for storage in self.reads]
        writes = self._variables()
        if self.gives_gradients:
            writes.append(gradients)
        elif self.changes:
            reads.append(gradients)  # a backward that is queued may still read what is written here
        push(self, reads, writes, Placement(self.device, bytes=self.bytes, bounded=False), self.__name__)

    def run_here(self, runner: Engine) -> None:
        """Run it on this thread, which has the turn of an engine where nothing is queued."""
        runner.perform_here(self, self._variables, self.__name__)

    def _variables(self) -> list[Var]:
        return [storage.variable() for storage in self.writes]

    def is_short(self) -> bool:
        """Whether it will soon be done."""
        return self.seconds < MOST_SECONDS_HERE and not self.plan.takes_long()

    def __call__(self) -> None:
        """Run it."""
        self._run([_real(item) for item in self._inputs], {})

    def among_failures(self) -> None:
        """Run what does not depend on anything that failed before; the rest is lost by the same failures."""
        poisoned = self._poisoned()
        inputs = [
            (item.real if item.__class__ is LazyValue else item) if index in poisoned else _real(item)
            for index, item in enumerate(self._inputs)
        ]
        self._run(inputs, poisoned)

    def _run(self, inputs: list[Any], poisoned: dict[int, Failure]) -> None:
        try:
            with segment_cores(self.seconds), flushing_denormals(self._flushes):
                if poisoned:
                    # A view that was never made shares nothing with its memory: that is not lost with it.
                    storages = [
                        object() if real is None else storage
                        for real, storage in zip(inputs, self._storages, strict=True)
                    ]
                    results = self.plan.run_among_failures(inputs, self._numbers, storages, poisoned)
                else:
                    results = self.plan.run(inputs, self._numbers, self._storages)
        except OperatorFailure as failure:
            self._store(failure.results)
            losses = self._losses(failure)
            raise PartialFailure(losses) from next(
                (loss.cause for loss in losses if isinstance(loss.cause, Exception)), None
            )
        except ExecutionError as error:
            lost = tuple(storage.variable() for storage in self.writes)
            raise PartialFailure([Damage(error, lost, thread=self._thread)]) from error
        self._store(results)

    def _poisoned(self) -> dict[int, Failure]:
        """Which inputs failed before, and how: the earliest failure first."""
        found: dict[int, Failure] = {}
        for index, (item, storage) in enumerate(zip(self._inputs, self._storages, strict=True)):
            producer = item.producer if item.__class__ is LazyValue else None
            causes = [place.var.failure for place in (storage, producer) if place is not None and place.var is not None]
            failures = [cause for cause in causes if isinstance(cause, Failure)]
            if failures:
                found[index] = min(failures, key=_rank)
        return dict(sorted(found.items(), key=lambda item: _rank(item[1])))

    def _store(self, results: Sequence[Any]) -> None:
        for value, real in zip(self._alive, results, strict=True):
            if real is None:
                continue
            if metadata_of(real) is not value.metadata:
                raise InternalError(
                    f"a queued operator gave {_shown(metadata_of(real))} in the place of {_shown(value.metadata)}"
                )
            value.real = real
        for leaf, value in self._gradients:
            leaf.grad = value.real

    def _losses(self, failure: OperatorFailure) -> list[Damage]:
        """What each of the failures in this segment, or before it, poisons."""
        outside = set(self._storages)
        whole = set(range(len(self._alive))) - {place for lost in failure.losses for place in lost.results}
        for place in whole:
            self._alive[place].producer = None  # it was taken: others that were not share what makes them
        found: list[Damage] = []
        for lost in failure.losses:
            gone: list[LazyStorage] = []
            kept: list[LazyStorage] = []
            for place in lost.results:
                value = self._alive[place]
                own = value.storage not in outside
                if failure.results[place] is not None:
                    value.producer = None
                    kept += [value.storage] if own else []
                    continue
                if value.producer is None:
                    value.producer = LazyStorage()  # its memory may be that of others, which are not gone for ever
                gone += [value.producer, value.storage] if own else [value.producer]
            for storage in dict.fromkeys(self._storages[index] for index in lost.inputs):
                if storage in self._written:
                    (kept if has_value(storage.variable()) else gone).append(storage)
            found.append(self._loss(lost, gone, kept))
        return found

    def _loss(self, lost: Lost, gone: Sequence[LazyStorage], kept: Sequence[LazyStorage]) -> Damage:
        variables = tuple(storage.variable() for storage in gone), tuple(storage.variable() for storage in kept)
        if isinstance(lost.cause, Failure):
            return Damage(lost.cause, *variables)
        step, position = self.plan.step_at(lost.place)
        title = getattr(step.schema.function, "__name__", "operator")
        return Damage(lost.cause, *variables, title, place_text(*self._places[position]), self._thread)


def _rank(failure: Failure) -> tuple[int, int]:
    return failure.rank


def _shown(metadata: TensorMetadata | None) -> str:
    return (
        "another kind of tensor"
        if metadata is None
        else f"{tuple(metadata.shape)} {metadata.strides} {metadata.dtype} {metadata.requires_grad}"
    )


def _real(item: Any) -> torch.Tensor:
    if item.__class__ is not LazyValue:
        return item  # type: ignore[no-any-return]
    if item.real is None:
        raise InternalError("a task ran before what it takes was computed")
    return item.real
