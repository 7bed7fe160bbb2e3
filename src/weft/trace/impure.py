"""Refuse calls whose answer is another one each time: clocks, entropy, files, the environment, iterators that go on.

A program would give the first answer for ever. What is asked for is a table of functions; they are looked for by a
profiler, which is told of every call, only where the code mentions one of their names. Iterators that were there before
are stood in for while code is traced.
"""

from __future__ import annotations

import builtins
import datetime as dt
import io
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeVar

from weft.owners import Owner, owner_of
from weft.trace.interception.places import user_place
from weft.trace.interception.refusals import refuse
from weft.trace.state import State

Found = TypeVar("Found")

CLOCKS = "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns thread_time"
CLOCKS += " localtime gmtime ctime strftime asctime"
MOMENTS = frozenset({"now", "today", "utcnow"})
# Functions of C and of Python that are refused, and what they are called.
BUILTIN: dict[Any, str] = {
    **{getattr(time, name): f"time.{name}" for name in CLOCKS.split()},
    os.urandom: "os.urandom",
    os.getpid: "os.getpid",
    io.open: "open",
    builtins.input: "input",
}
PYTHON: dict[CodeType, str] = {
    **{getattr(uuid, name).__code__: f"uuid.{name}" for name in ("uuid1", "uuid4")},
    vars(os)["_Environ"].__getitem__.__code__: "os.environ",
}
SEEDS = random.Random.__init__.__code__
# Code that mentions none of these calls none of them.
NAMES = frozenset(
    f"""
    {CLOCKS} now today utcnow urandom getpid open read_text read_bytes input token_bytes token_hex token_urlsafe
    randbelow randbits choice SystemRandom uuid1 uuid4 getenv environ default_rng RandomState Random SeedSequence
    SFC64 PCG64 MT19937 Philox
    """.split()
)
# Where these ask for the time, or read a file, it is for a log, a warning or an import.
ASIDE = ("logging", "warnings", "linecache", "tokenize", "traceback", "importlib", "inspect", "threading")


def without_impure_calls(state: State, trace: Callable[[], Found]) -> Found:
    """Give what tracing gives, or refuse where it asks for what is another answer each time."""
    with _iterators_refused(state):
        if not state.mentioned & NAMES and not any(isinstance(one, random.SystemRandom) for one in state.sources):
            return trace()
        outer = sys.getprofile()
        sys.setprofile(_watch)
        try:
            return trace()
        finally:
            sys.setprofile(outer)


def _watch(frame: FrameType, event: str, called: Any) -> None:
    if event == "c_call":
        name = _of_builtin(called)
        if name is not None and _is_asked_by_user(frame):
            refuse("impure call", user_place(), detail=name)
    elif event == "call" and frame.f_back is not None:
        name = PYTHON.get(frame.f_code)
        if frame.f_code is SEEDS and frame.f_locals.get("x") is None:
            name = None if isinstance(frame.f_locals.get("self"), random.SystemRandom) else "random.Random()"
        if name is not None and _is_asked_by_user(frame.f_back):
            refuse("impure call", user_place(), detail=name)


def _of_builtin(called: Any) -> str | None:
    try:
        name = BUILTIN.get(called)
    except TypeError:
        return None  # a method of something that has no hash
    if name is None and getattr(called, "__name__", "") in MOMENTS:
        owner = getattr(called, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, dt.date):
            return f"{owner.__name__}.{called.__name__}"
    return name


def _is_asked_by_user(frame: FrameType | None) -> bool:
    """Whether it is the user's code that asks, perhaps through a library, and not a log, a warning or an import."""
    found = False
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        owner = owner_of(frame.f_code.co_filename)
        if package in ASIDE or (owner in (Owner.TORCH, Owner.WEFT) and not found):
            return False
        found = found or owner is Owner.USER
        frame = frame.f_back if not found else None
    return found


class Refusing:
    """Stands for an iterator that was there before: what it gives next is another thing at each call."""

    def __iter__(self) -> Refusing:
        return self

    def __next__(self) -> Any:
        refuse("iterator", user_place())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse("iterator", user_place(), detail=name)


@contextmanager
def _iterators_refused(state: State) -> Iterator[None]:
    """While entered, iterators that code reaches refuse to go on; none of them does."""
    places = [(slot, slot.get()) for slot in state.iterators if not isinstance(slot.container, tuple)]
    for slot, _ in places:
        slot.put(Refusing())
    try:
        yield
    finally:
        for slot, iterator in places:
            slot.put(iterator)
