"""Let a profiler hear what traced code calls, and nothing that Weft does meanwhile.

A profiler costs a call of Python for each call and each return, of C too; most of a trace is Weft's own. So who wants
to hear says so around a trace, and is heard by where code runs: `heard`. Below an operator there is no code of the
user's: `unheard`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from cProfile import Profile as Profiler
from types import FrameType
from typing import Any, TypeVar

Hear = Callable[[FrameType, str, Any], None]
Result = TypeVar("Result")
MARK = "hears_for_weft"  # of profilers that are taken away where nothing is to be heard; a person's own stays

_wanted: ContextVar[Hear | None] = ContextVar("_wanted", default=None)


@contextmanager
def hearing(hear: Hear) -> Iterator[None]:
    """Let a function be told of what code calls that is traced in the block; it is taken for a profiler."""
    token = _wanted.set(_marked(hear))
    try:
        yield
    finally:
        _wanted.reset(token)


@contextmanager
def heard() -> Iterator[None]:
    """Code runs in the block: who wants to hear does, beside one that hears already."""
    hear, before = _wanted.get(), sys.getprofile()
    if hear is None:
        yield
        return
    sys.setprofile(_both(before, hear) if hasattr(before, MARK) else hear)
    try:
        yield
    finally:
        _put_back(before)


@contextmanager
def noted_by(hear: Hear) -> Iterator[None]:
    """Let a function hear of everything in the block but what is `unheard`, beside the profiler that there is."""
    before = sys.getprofile()
    sys.setprofile(_both(before, hear) if callable(before) else _marked(hear))
    try:
        yield
    finally:
        _put_back(before)


def unheard(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function of which nobody of Weft's is to hear what it does."""
    profiler = sys.getprofile()
    if not hasattr(profiler, MARK):
        return function(*arguments)
    sys.setprofile(None)
    try:
        return function(*arguments)
    finally:
        sys.setprofile(profiler)


def _put_back(profiler: Any) -> None:
    if isinstance(profiler, Profiler):  # of cProfile, which only C may call
        sys.setprofile(None)
        profiler.enable()
    else:
        sys.setprofile(profiler)


def _both(one: Any, other: Hear) -> Hear:
    def hear(frame: FrameType, event: str, called: Any) -> None:
        one(frame, event, called)
        other(frame, event, called)

    return _marked(hear) if hasattr(one, MARK) else hear


def _marked(hear: Hear) -> Hear:
    setattr(hear, MARK, True)
    return hear
