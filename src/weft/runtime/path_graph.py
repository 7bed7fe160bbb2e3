"""Run a path: segments one after the other, each ended by a decision, until an outcome is another than the path's.

No segment writes memory that it is given. So whoever meets another outcome may go on by another path: what was computed
is handed over, and is not computed again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from weft.errors import counted
from weft.ir.generator import generator_state
from weft.ir.graph import Graph, Value
from weft.ir.types import NumberType, TensorType, Type
from weft.runtime.compiled_graph import CompiledGraph, NativeRegion
from weft.runtime.varying_sizes import VaryingExecutable
from weft.trace.decisions import NumberRead

Runs = CompiledGraph | VaryingExecutable


@dataclass(frozen=True, slots=True, eq=False)
class PathDecision:
    """What ends a segment: places of tensors in the frame of a run, what is asked of them, the path's outcome.

    With `read`, what is asked is a number that goes in from there on, and decides by conditions.
    """

    places: tuple[int, ...]
    ask: Callable[..., Any]
    outcome: Any
    read: NumberRead | None = None

    def outcome_in(self, frame: list[Any], numbers: int) -> Any:
        """What a run decides; what it reads is put into its frame, behind those `numbers` places that hold tensors."""
        found = self.ask(*[frame[place] for place in self.places])
        read = self.read
        if read is None:
            return found
        frame[numbers + read.number] = found
        known = frame[numbers:]
        try:
            for one in read.computed:
                frame[numbers + one.number] = known[one.number] = one.leaf.value(known)
            broken = next((condition for condition in read.conditions if not condition.holds(known)), None)
        except (ArithmeticError, ValueError) as error:  # code may catch what Python raises for this number
            return NOT, str(error)
        return self.outcome if broken is None else (NOT, broken.text)


@dataclass(frozen=True, slots=True, eq=False)
class PathSegment:
    """One program of a path: places in the frame of what it takes and gives; without a `run` it computes nothing."""

    run: Runs | None
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    decision: PathDecision | None = None


Done = tuple[Runs, list[Any], Sequence[Any]]  # a segment that has run, what it took, what it gave


NOT = "not"
FAILED = object()
"""The outcome where an operator raises: as nothing has been written, Python may run all of it, and raise it anew."""


class OtherOutcome(Exception):  # noqa: N818 - no error: the run goes on by another path
    """A decision of a path, the one of this number, had another outcome.

    `done` are the segments that have run, `random` is the state of the generator before, where anything was drawn.
    """

    def __init__(self, path: PathGraph, number: int, outcome: Any, done: list[Done], random: Any) -> None:
        super().__init__(number, outcome)
        self.path = path
        self.number = number
        self.outcome = outcome
        self.done = done
        self.random = random

    @property
    def failed(self) -> tuple[Any, ...]:
        """The outcomes of the path up to the one that was another; no path that begins with them is right."""
        return self.path.outcomes[: self.number + 1]

    @contextmanager
    def handed_over(self) -> Iterator[None]:
        """In this block, a path that this thread runs goes on from here."""
        HANDED_OVER.last = self
        try:
            yield
        finally:
            HANDED_OVER.last = None

    def put_back(self) -> None:
        """Let all be computed anew."""
        if self.random is not None:
            torch.set_rng_state(self.random)


class RaisedInHandling(OtherOutcome):
    """An operator of a whole program raised where the code handles exceptions, if only to raise others."""

    def __init__(self, random: Any) -> None:
        Exception.__init__(self, "an operator raised")
        self.path: Any = None
        self.number, self.outcome, self.done, self.random = 0, FAILED, [], random


class _HandedOver(threading.local):
    last: OtherOutcome | None = None


HANDED_OVER = _HandedOver()


class PathGraph:
    """Takes a path's inputs in order, gives its roots in order, each once, as a CompiledGraph does."""

    order = None
    capture = ""

    def __init__(
        self, graph: Graph, places: Mapping[Value, int], segments: Sequence[PathSegment], *, draws: bool
    ) -> None:
        """`places` are where in the frame values are; `draws` whether anything is drawn."""
        self.roots = tuple(dict.fromkeys(graph.roots()))
        self.types: tuple[Type, ...] = tuple(root.type for root in self.roots)
        self.segments = tuple(segments)
        self.outcomes = tuple(segment.decision.outcome for segment in segments if segment.decision is not None)
        self.root_places = tuple(places[root] for root in self.roots)
        self.kinds = {place: value.type for value, place in places.items()}
        self.is_one_region = not draws and _are_native(segments)
        self._draws = draws
        self.first_number = sum(isinstance(value.type, TensorType) for value in graph.inputs)
        numbers = [value.type for value in graph.inputs[self.first_number :]]
        # The places of numbers, and which kind of number each is.
        self.number_places: tuple[tuple[int, type], ...] = tuple(
            (place, int if isinstance(kind, NumberType) and kind.kind == "int" else float)
            for place, kind in enumerate(numbers, self.first_number)
        )
        self._reads = any(segment.decision is not None and segment.decision.read is not None for segment in segments)
        self._room = [None] * (max(places.values(), default=-1) + 1 - len(graph.inputs))

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the path."""
        frame = [*inputs, *self._room]
        before = HANDED_OVER.last
        made: list[Done] = []
        first = 0
        random = None if before is None else before.random
        if random is None and self._draws:
            random = generator_state()  # a path before this one has drawn nothing
        if before is not None:
            HANDED_OVER.last = None
            if self._takes_over(frame, before):
                first, made = before.number, before.done
            else:
                before.put_back()
                before = None
                frame = [*inputs, *self._room]
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            run, decision = segment.run, segment.decision
            if run is not None and (before is None or number > first):
                taken = [frame[place] for place in segment.takes]
                try:
                    outputs = run(taken)
                except Exception as error:
                    raise OtherOutcome(self, number, FAILED, made, random) from error
                made.append((run, taken, outputs))
                for place, output in zip(segment.gives, outputs):  # noqa: B905 - to name `strict` takes as long
                    frame[place] = output
            if decision is not None:
                outcome = decision.outcome_in(frame, self.first_number)
                if outcome != decision.outcome:
                    raise OtherOutcome(self, number, outcome, made, random)
        if self._reads and isinstance(inputs, list):
            inputs[self.first_number :] = frame[self.first_number : len(inputs)]
        return tuple([frame[place] for place in self.root_places])

    def _takes_over(self, frame: list[Any], before: OtherOutcome) -> bool:
        """Take what another path has computed, if this one would compute the very same; all of it, or nothing."""
        done = iter(before.done)
        if self.outcomes[: before.number] != before.failed[:-1]:
            return False
        for number, segment in enumerate(self.segments[: before.number + 1]):
            if segment.run is not None:
                one = next(done, None)
                if one is None or one[0] is not segment.run:
                    return False
                if not all(map(_is_same, one[1], [frame[place] for place in segment.takes])):
                    return False
                for place, output in zip(segment.gives, one[2], strict=True):
                    frame[place] = output
            # Numbers are read again, also those that nothing was computed for: the frame is another one.
            if number < before.number and not self._reads_again(segment.decision, frame):
                return False
        return next(done, None) is None

    def _reads_again(self, decision: PathDecision | None, frame: list[Any]) -> bool:
        """Read a number that a decision reads, if it does; whether it is one of this path."""
        if decision is None or decision.read is None:
            return True
        return bool(decision.outcome_in(frame, self.first_number) == decision.outcome)

    def summary(self) -> str:
        """One line: the segments, and the outcomes between them."""
        outcomes = ", ".join(map(str, self.outcomes))
        count = counted(sum(segment.run is not None for segment in self.segments), "segment")
        return f"a path of {count}, {counted(len(self.regions), 'region')} in machine code; decided: {outcomes}"

    @property
    def regions(self) -> tuple[NativeRegion, ...]:
        """The regions in machine code of all segments."""
        return tuple(region for segment in self.segments if segment.run is not None for region in segment.run.regions)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a segment is planned to need at once, beside its inputs."""
        return max((segment.run.peak_bytes for segment in self.segments if segment.run is not None), default=0)

    def bound(self, arguments: Sequence[int]) -> None:
        """Give nothing: what runs next is not known beforehand."""
        del arguments


def _are_native(segments: Sequence[PathSegment]) -> bool:
    """Whether all segments are native code that gives new tensors."""
    runs = [segment.run for segment in segments if segment.run is not None]
    return all(isinstance(run, CompiledGraph) and run.native_parts() is not None for run in runs)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two inputs are the same: tensors by identity, numbers by value."""
    return one is other or (type(one) in (int, float) and type(one) is type(other) and one == other)
