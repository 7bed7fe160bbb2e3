"""Work that lazy code queues -> tasks of the engine of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weft.devices import cpu_count, placed
from weft.engine import BaseEngine, Engine, Placement, Var, current_engine
from weft.engine.base import nothing
from weft.errors import ExecutionError
from weft.lazy_tensors.gpu_lanes import gpu_lanes
from weft.lazy_tensors.questions import user_place
from weft.lazy_tensors.recording import Segment, place_text
from weft.lazy_tensors.values import Memory
from weft.runtime.kept_memory import keep_freed_memory


def engine() -> BaseEngine:
    """The engine of this process."""
    return current_engine(_devices)


def _devices() -> dict[str, int]:
    return {"cpu": cpu_count(), "copy": 1} | gpu_lanes()


def idle() -> bool:
    """Whether all that was pushed is done."""
    return engine().limits.pushed == engine().limits.done


def lane() -> str:
    """The lane of work on tensors of the CPU, wherever new tensors are made."""
    place = placed()
    return "cpu:0" if place is None or place.kind != "cpu" else str(place)


def run_here(runner: Engine, segment: Segment) -> None:
    """Run a segment on this thread, which has the turn of an engine where nothing is queued."""

    def writes() -> list[Var]:
        return [memory.variable() for memory in segment.writes]

    runner.perform_here(segment, writes, segment.__name__)


def push_segment(segment: Segment, gradients: Var) -> None:
    """Push a segment; `gradients` orders what gives gradients and what changes tensors that such work may read."""
    reads = [memory.variable() for memory in segment.reads]
    writes = [memory.variable() for memory in segment.writes]
    if segment.gives_gradients:
        writes.append(gradients)
    elif segment.changes:
        reads.append(gradients)  # a backward that is queued may still read what is written here
    place = Placement(segment.device, bytes=segment.bytes, bounded=False)
    _push(segment, reads, writes, place, segment.__name__)


def push_task(task: Callable[[], None], reads: Sequence[Var], writes: Sequence[Var], name: str) -> None:
    """Push a task to the lane in use."""
    _push(task, reads, writes, Placement(lane(), where=place_text(*user_place()), bounded=False), name)


def push_copy(task: Callable[[], None], reads: Sequence[Var], writes: Sequence[Var], size: int) -> None:
    """Push a task to the copy workers."""
    _push(task, reads, writes, Placement("copy", bytes=size, where=place_text(*user_place())), "copy")


def _push(task: Callable[[], None], reads: Sequence[Var], writes: Sequence[Var], place: Placement, name: str) -> None:
    keep_freed_memory()
    runner = engine()
    try:
        runner.push(task, reads, writes, place, name)
    except ExecutionError:
        runner.failures.recover()  # the engine to debug with has run it, and so told of the failure
        raise


def after_readers(memories: Iterable[Memory]) -> None:
    """Wait until nothing queued reads or writes these memories."""
    variables = [memory.var for memory in memories if memory.var is not None]
    for variable in variables:
        engine().push(nothing, (), (variable,), Placement(bounded=False), "wait for readers")
    engine().finish(variables)
