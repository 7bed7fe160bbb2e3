"""Suspend the garbage collector while a program is made.

Making a program makes hundreds of thousands of small objects and keeps them. Python's collector looks through all
objects of the process, a model's and PyTorch's too, each time their number has grown by a quarter, and finds nothing:
it took a third of a first call.
"""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
