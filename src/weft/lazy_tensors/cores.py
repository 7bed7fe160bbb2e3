"""Give a segment the cores that are free for it, fewer while the thread that queues takes one itself.

While nobody waits, the thread that queues takes a core itself. A segment on all cores would then have to share one with
it, and each of its lanes waits until the slowest is given a turn.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch

from weft import devices
from weft.devices import cpu_count

# Of estimated work. What takes longer outlasts the queuing, and is better given all cores from the start.
MOST_SECONDS = 0.03
_WAITING: list[None] = []  # one for each thread that waits
_TAKEN: list[int] = []  # by each segment that runs


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
    """Let a segment with so much work use the cores that are free for it."""
    count = cpu_count()
    free = count - sum(list(_TAKEN)) - (not _WAITING)
    # Few numbers, as a program is compiled for each.
    sizes = [some for some in (count, count - 1, count // 2, 1) if 1 <= some <= max(free, 1)]
    given = count if seconds > MOST_SECONDS else max(sizes)
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
