"""Set how Python and the C library manage memory: no search for cycles while a program is made, freed memory is kept.

Making a program makes hundreds of thousands of small objects and keeps them. Python's collector looks through all
objects of the process, a model's and PyTorch's too, each time their number has grown by a quarter, and finds nothing:
it took a third of a first call.

Of its own accord the C library gives memory of large tensors back to the system as soon as they are freed, and gets it
again for the next ones, page by page and each full of zeros: where some results are kept, that takes longer than to
copy them. WEFT_KEPT_MEMORY says how much of it stays (docs/decisions/0049-kept-memory.md).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from weft.config import config
from weft.engine.limit import quarter_of_memory

MEGABYTE = 1 << 20
SHARE = 4  # of a quarter of the machine's memory: no more of it is kept, whatever the option says
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # parameters of mallopt(3)
LARGEST = 32 * MEGABYTE  # that MMAP_THRESHOLD may be: larger blocks are always pages of their own
PADDING = 64 * MEGABYTE  # as large as a heap of a thread, which is then not given back when it is empty


# Held only while what follows is looked at, so it cannot deadlock.
_lock = threading.Lock()
_depth = 0  # of all threads together
_own = threading.local()  # depth of this thread
_was_enabled = False


@contextmanager
def without_collection() -> Iterator[None]:
    """Let nothing be collected while any thread is in such a block; counts of references end objects as ever."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _depth, _was_enabled  # noqa: PLW0603  # the collector is one in a process, and so is its state
    with _lock:
        if _depth == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _depth += 1
        _own.depth = _own_depth() + 1


def _leave() -> None:
    global _depth  # noqa: PLW0603  # as above
    with _lock:
        _depth -= 1
        _own.depth = _own_depth() - 1
        _enable_if_done()


def _own_depth() -> int:
    return int(getattr(_own, "depth", 0))


def _enable_if_done() -> None:
    if _depth == 0 and _was_enabled:
        gc.enable()


def _begin_anew() -> None:
    """In a forked child the other threads are gone, and will not leave their blocks."""
    global _lock, _depth  # noqa: PLW0603  # a forked child must not inherit a lock that nobody will release
    _lock = threading.Lock()
    others, _depth = _depth - _own_depth(), _own_depth()
    if others:
        _enable_if_done()


os.register_at_fork(after_in_child=_begin_anew)


@cache
def keep_freed_memory() -> None:
    """Keep what is freed for what comes next, once in a process."""
    size = min(config().kept_memory * MEGABYTE, quarter_of_memory() // SHARE)
    if not size or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return  # another C library, with rules of its own
    for name, value in ((TRIM_THRESHOLD, size), (TOP_PAD, min(PADDING, size)), (MMAP_THRESHOLD, min(LARGEST, size))):
        mallopt(name, value)
