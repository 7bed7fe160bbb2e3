"""Whether a thread of the user's waits for queued work -> how many cores a segment may use.

While nobody waits, the thread that queues takes a core itself. A segment on all cores would then have to share one with
it, and each of its lanes waits until the slowest is given a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from weft.api.asynchronous_cores import cores
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
        with nullcontext() if given == count else cores(given):
            yield
    finally:
        _TAKEN.remove(given)
