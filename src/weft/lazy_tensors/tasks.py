"""Push lazy work to the engine of this process, with the line that asked for it, on the cores that are free."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, lru_cache
from pathlib import Path
from sys import _getframe
from types import CodeType, FrameType

import torch
from torch import is_autocast_enabled, is_inference_mode_enabled

from weft import devices
from weft.devices import cpu_count, placed
from weft.engine import BaseEngine, Placement, Var, current_engine
from weft.engine.base import nothing
from weft.engine.workers import WORKING
from weft.errors import ExecutionError, source_line
from weft.lazy_tensors.tensor import LazyStorage
from weft.owners import Owner, owner_of
from weft.runtime.process_memory import keep_freed_memory
from weft.trace.interception.capture import traced_elsewhere
from weft.trace.interception.modes import running_autograd_number

GPU_LANES = 2  # so many spawned calls queue work on a GPU at once
# Of estimated work. What takes longer outlasts the queuing, and is better given all cores from the start.
MOST_SHARED_SECONDS = 0.03
_WAITING: list[None] = []  # one for each thread that waits
_TAKEN: list[int] = []  # by each segment that runs
Place = tuple[CodeType, int]  # a function's code, and an instruction in it


def user_place() -> Place:
    """The code and instruction of the user's that called into PyTorch."""
    return place_of(_getframe(2))  # whoever asks is of Weft itself


def is_users(code: CodeType) -> bool:
    """Whether code is the user's: neither Weft's own nor PyTorch's."""
    return owner_of(code.co_filename) not in (Owner.WEFT, Owner.TORCH)


def place_of(frame: FrameType) -> Place:
    """The code and instruction of the user's that this frame belongs to, or was called from."""
    while True:
        code = frame.f_code
        if is_users(code) or frame.f_back is None:
            return code, frame.f_lasti
        frame = frame.f_back


@lru_cache(maxsize=4096)  # the same lines queue work again and again
def place_text(code: CodeType, instruction: int) -> str:
    """A place in a function's code, in words."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return source_line(code.co_filename, line)
    return source_line(code.co_filename, code.co_firstlineno)


def in_task() -> bool:
    """Whether this code runs in a task of the engine."""
    return getattr(WORKING, "worker", None) is not None


def is_like_a_worker() -> bool:
    """Whether operators do on this thread, which runs no task, what they would do on one of the engine's."""
    if is_autocast_enabled("cpu") or is_inference_mode_enabled() or running_autograd_number() is not None:
        return False
    return not traced_elsewhere(()) and not in_task()


def engine() -> BaseEngine:
    """The engine of this process."""
    return current_engine(_devices)


def _devices() -> dict[str, int]:
    gpus = {f"cuda:{index}": GPU_LANES for index in range(torch.cuda.device_count())}
    return {"cpu": cpu_count(), "copy": 1} | gpus


def idle() -> bool:
    """Whether all that was pushed is done."""
    return engine().limits.pushed == engine().limits.done


def lane() -> str:
    """The lane of work on tensors of the CPU, wherever new tensors are made."""
    place = placed()
    return "cpu:0" if place is None or place.kind != "cpu" else str(place)


def push_task(task: Callable[[], None], reads: Sequence[Var], writes: Sequence[Var], name: str) -> None:
    """Push a task to the lane in use."""
    push(task, reads, writes, Placement(lane(), where=place_text(*user_place()), bounded=False), name)


def push_copy(task: Callable[[], None], reads: Sequence[Var], writes: Sequence[Var], size: int) -> None:
    """Push a task to the copy workers."""
    push(task, reads, writes, Placement("copy", bytes=size, where=place_text(*user_place())), "copy")


def push(task: Callable[[], None], reads: Sequence[Var], writes: Sequence[Var], place: Placement, name: str) -> None:
    """Push a task to the engine; under the engine to debug with it runs here, and is told of if it fails."""
    keep_freed_memory()
    runner = engine()
    try:
        runner.push(task, reads, writes, place, name)
    except ExecutionError:
        runner.failures.recover()  # the engine to debug with has run it, and so told of the failure
        raise


def wait_for_users(storages: Iterable[LazyStorage]) -> None:
    """Wait until nothing queued reads or writes these storages."""
    variables = [storage.var for storage in storages if storage.var is not None]
    for variable in variables:
        engine().push(nothing, (), (variable,), Placement(bounded=False), "wait for readers")
    engine().finish(variables)


@contextmanager
def waiting() -> Iterator[None]:
    """Note that this thread queues nothing in the block, as it waits."""
    _WAITING.append(None)
    try:
        yield
    finally:
        _WAITING.pop()


@contextmanager
def segment_cores(seconds: float) -> Iterator[None]:
    """Let a segment with so much work use the cores that are free for it.

    While nobody waits, the thread that queues takes a core itself. A segment on all cores would then have to share one
    with it, and each of its lanes waits until the slowest is given a turn.
    """
    count = cpu_count()
    free = count - sum(list(_TAKEN)) - (not _WAITING)
    # Few numbers, as a program is compiled for each.
    sizes = [some for some in (count, count - 1, count // 2, 1) if 1 <= some <= max(free, 1)]
    given = count if seconds > MOST_SHARED_SECONDS else max(sizes)
    _TAKEN.append(given)
    try:
        with nullcontext() if given == count else operator_cores(given):
            yield
    finally:
        _TAKEN.remove(given)


@cache
def _openmp() -> ctypes.PyDLL | None:
    """The OpenMP that PyTorch computes with. `torch.set_num_threads` would also bind threads that begin later.

    Its functions keep the interpreter's lock: to have it back would take longer than all that they do.
    """
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("lib*omp*.so*")):
        library = ctypes.PyDLL(str(path))
        if hasattr(library, "omp_set_num_threads"):
            return library
    return None


class operator_cores(devices.cores):  # noqa: N801  # called like a function
    """A block in which operators of this thread, and what it compiles, use so many cores."""

    def __enter__(self) -> None:
        super().__enter__()
        before = torch.get_num_threads()
        self._openmp = _openmp() if before != self.count else None
        self._before = before
        if self._openmp is not None:
            self._openmp.omp_set_num_threads(self.count)

    def __exit__(self, *error: object) -> None:
        if self._openmp is not None:
            self._openmp.omp_set_num_threads(self._before)
        super().__exit__(*error)
