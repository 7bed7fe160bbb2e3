"""Refuse calls whose answer is another one each time: clocks, entropy, files, iterators, random numbers of Python.

A program would give the first answer for ever. What is asked for is a table of functions; they are looked for by a
profiler, which is told of every call of the code, only where the code mentions one of their names. Iterators that were
there before are stood in for while code is traced.

Random numbers that `random` or NumPy draw would be the same at every run. Whether any were drawn is seen by the
generators' states; since other threads draw too, what is seen is looked for in this thread, by tracing once more under
a profiler.
"""

from __future__ import annotations

import builtins
import datetime as dt
import gc
import io
import os
import pickle
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, TypeVar

import numpy as np
import torch

from weft.ir.graph import Place
from weft.owners import Owner, owner_of
from weft.trace.interception.hearing import Hear, hearing
from weft.trace.interception.modes import MAKE_SUBCLASS
from weft.trace.interception.refusals import note_raised, refuse, refuse_forgotten
from weft.trace.interception.user_lines import user_place
from weft.trace.python_state.caches import CACHED, METHODS, Memory, code_of_full
from weft.trace.python_state.containers import referent
from weft.trace.python_state.draws import set_state, state_of
from weft.trace.python_state.locations import Slot, standing_in
from weft.trace.python_state.names import is_library
from weft.trace.python_state.reachable import PythonState
from weft.trace.python_state.sources import OF_PROCESS, TAKEN

Found = TypeVar("Found")

CLOCKS = "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns thread_time"
CLOCKS += " localtime gmtime ctime strftime asctime"
MOMENTS = frozenset({"now", "today", "utcnow"})
INITIAL_SEED = "initial_seed"
OF_METHODS = MOMENTS | {*METHODS, INITIAL_SEED}
OF_NO_USER = (Owner.TORCH, Owner.WEFT)  # whose code asks for itself
# Functions of C and of Python that are refused, and what they are called.
BUILTIN: dict[Any, str] = {
    **{getattr(time, name): f"time.{name}" for name in CLOCKS.split()},
    os.urandom: "os.urandom",
    os.getpid: "os.getpid",
    **{getattr(os, name): f"os.{name}" for name in ("getcwd", "stat", "lstat", "listdir", "scandir", "access")},
    gc.isenabled: "gc.isenabled",  # not while code is traced
    io.open: "open",
    builtins.input: "input",
}
# They run text, to which no name leads: what it reads would not be compared. Python's own modules make classes by them.
OF_TEXT: dict[Any, str] = {builtins.eval: "eval", builtins.exec: "exec"}
# What these are called, and methods: of all that code calls next to nothing is called so, which is told by one look.
HEARD = frozenset(one.__name__ for one in (*BUILTIN, *OF_TEXT, MAKE_SUBCLASS)) | OF_METHODS
PYTHON: dict[CodeType, str] = {
    **{getattr(uuid, name).__code__: f"uuid.{name}" for name in ("uuid1", "uuid4")},
    torch.initial_seed.__code__: "torch.initial_seed",
    torch.seed.__code__: "torch.seed",
}
SEEDS = random.Random.__init__.__code__
# Code that mentions none of these calls none of them.
NAMES = frozenset(
    f"""
    {CLOCKS} now today utcnow urandom getpid open read_text read_bytes input token_bytes token_hex token_urlsafe
    randbelow randbits choice SystemRandom uuid1 uuid4 default_rng RandomState Random SeedSequence
    SFC64 PCG64 MT19937 Philox cache_clear cache_info eval exec initial_seed seed
    _make_subclass getcwd cwd stat lstat listdir scandir iterdir glob access exists isfile isdir getsize getmtime
    is_file is_dir isenabled
    """.split()
)
MOVING = frozenset({"random", "getrandbits", "seed", "setstate"})  # what a generator of Python's does in C
# Where these ask for the time, or read a file, it is for a log, a warning or an import.
ASIDE = {"logging", "warnings", "linecache", "tokenize", "traceback", "inspect", "threading"}
ASIDE |= {"importlib", "_frozen_importlib", "_frozen_importlib_external"}


def without_impure_calls(state: PythonState, trace: Callable[[], Found]) -> Found:
    """Give what tracing gives, or refuse where it asks for what is another answer each time."""
    for path in _fleeting(state):
        refuse("weak reference", None, detail=path)
    with _iterators_refused(state):
        full = {code: Memory(cached) for cached in state.caches if (code := code_of_full(cached)) is not None}
        by_system = any(isinstance(one, random.SystemRandom) for one in state.sources)
        if not (state.mentioned & NAMES or by_system or full):
            return trace()
        with hearing(_refusing(full)):
            return trace()


def _fleeting(state: PythonState) -> Iterator[str]:
    """Where code may find weak references to what it reaches by nothing else: that ends when others let go of it."""
    for reference, path, attribute in state.references:
        thing = referent(reference)
        is_held = thing is None or id(thing) in state.visited or id(thing) in state.places or is_library(thing)
        if not (is_held or (attribute is not None and attribute not in state.mentioned and not state.asks_all)):
            yield path


def _refusing(full: Mapping[CodeType, Memory]) -> Hear:
    """Give what refuses calls that it hears of. It hears of all that code calls: most are told by one look."""
    looked_for = frozenset(map(id, (*full, *PYTHON, SEEDS)))  # equality of code is of all that it consists of

    def hear(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            if called.__name__ in HEARD and owner_of(frame.f_code.co_filename) not in OF_NO_USER:
                _refuse_of_c(frame, called)
        elif event == "call" and id(frame.f_code) in looked_for and frame.f_back is not None:
            _refuse_of_python(full, frame, frame.f_back)

    return hear


def _refuse_of_c(frame: FrameType, called: Any) -> None:
    if called == MAKE_SUBCLASS and _is_asked_by_user(frame):
        refuse("made subclass", user_place())  # no stand-in is asked
    name = _of_builtin(called)
    if name is None and owner_of(frame.f_code.co_filename) is Owner.USER:
        name = next((name for one, name in OF_TEXT.items() if one is called), None)
    if name is not None and _is_asked_by_user(frame):
        refuse("impure call", user_place(), detail=name)


def _refuse_of_python(full: Mapping[CodeType, Memory], frame: FrameType, caller: FrameType) -> None:
    if frame.f_code in full and full[frame.f_code].has_missed():
        error = refuse_forgotten([full[frame.f_code].name])  # before anything is forgotten for it
        note_raised(error)
        raise error
    name = PYTHON.get(frame.f_code)
    if frame.f_code is SEEDS and frame.f_locals.get("x") is None:
        name = None if isinstance(frame.f_locals.get("self"), random.SystemRandom) else "random.Random()"
    if name is not None and _is_asked_by_user(caller):
        refuse("impure call", user_place(), detail=name)


def _of_builtin(called: Any) -> str | None:
    try:
        name = BUILTIN.get(called)
    except TypeError:
        return None  # a method of something that has no hash
    method = getattr(called, "__name__", "")
    if name is not None or method not in OF_METHODS:
        return name
    owner = getattr(called, "__self__", None)
    if method in METHODS and isinstance(owner, CACHED):
        return f"{method} of {getattr(owner, '__name__', 'a function')}"
    if method in MOMENTS and isinstance(owner, type) and issubclass(owner, dt.date):
        return f"{owner.__name__}.{method}"
    return "Generator.initial_seed" if method == INITIAL_SEED and isinstance(owner, torch.Generator) else None


def _is_asked_by_user(frame: FrameType | None) -> bool:
    """Whether it is the user's code that asks, perhaps through a library, and not a log, a warning or an import.

    Nor is it what the collector of garbage tells that it collects: it may do so anywhere.
    """
    found = False
    told = [getattr(one, "__code__", None) for one in gc.callbacks]
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        owner = owner_of(frame.f_code.co_filename)
        if package in ASIDE or frame.f_code in told or (owner in OF_NO_USER and not found):
            return False
        found = found or owner is Owner.USER
        frame = frame.f_back if not found else None
    return found


class Refusing:
    """Stands for an iterator that was there before: what it gives next is another thing at each call.

    Other threads go on with the iterator itself.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._thread = get_ident()

    def __iter__(self) -> Refusing:
        return self

    def __next__(self) -> Any:
        if get_ident() == self._thread:
            refuse("iterator", user_place())
        return next(self._iterator)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if own and get_ident() != own["_thread"]:
            return getattr(own["_iterator"], name)
        if not name.startswith("__"):
            refuse("iterator", user_place(), detail=name)
        raise AttributeError(name)

    def method(self, name: str) -> Callable[..., Any]:
        """Stands for a method of the iterator."""

        def refusing(*arguments: Any, **keywords: Any) -> Any:
            if get_ident() == self._thread:
                refuse("iterator", user_place(), detail=name)
            return getattr(self._iterator, name)(*arguments, **keywords)

        return refusing


@contextmanager
def _iterators_refused(state: PythonState) -> Iterator[None]:
    """While entered, iterators that code reaches refuse to go on; none of them does."""
    found: list[tuple[Slot, Any]] = [(slot, Refusing(slot.get())) for slot in state.iterators]
    methods = [(slot, method) for slot, method in state.bound if isinstance(method.__self__, TAKEN)]
    found += [(slot, Refusing(method.__self__).method(method.__name__)) for slot, method in methods]
    with standing_in(found):
        yield


def without_draws(sources: Sequence[Any], trace: Callable[[], Found]) -> Found:
    """Give what tracing gives, or refuse if it draws, also from generators of its own that it reaches: `sources`."""
    before = _states()
    own = [(source, state_of(source)) for source in sources if not isinstance(source, random.SystemRandom)]
    try:
        found = trace()
    except Exception:
        # Whoever made the call may run the code again, which draws these numbers then.
        _put_back(before, own)
        raise
    if any(pickle.dumps(state_of(source)) != pickle.dumps(state) for source, state in own):
        _refuse_own(own, trace)
    after = _states()
    numpy_moved = not _same_numpy(before[1], after[1])
    if before[0] == after[0] and not numpy_moved:
        return found
    look = _Look(numpy=numpy_moved)  # it may have been another thread
    profiler = sys.getprofile()
    sys.setprofile(look)
    try:
        found = trace()
    finally:
        sys.setprofile(profiler)
    if look.places:
        _put_back(before, ())
        refuse("python draw", look.places[0])
    return found


def _put_back(states: tuple[Any, Any], own: Sequence[tuple[Any, Any]]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    for source, state in own:
        set_state(source, state)


def _refuse_own(own: Sequence[tuple[Any, Any]], trace: Callable[[], object]) -> None:
    """Refuse draws from generators of the function's own, which are put back; traces once more for the line."""
    places: list[Place | None] = []
    now = [pickle.dumps(state_of(source)) for source, _ in own]

    def look(_frame: FrameType, _event: str, _called: Any) -> None:
        if not places and [pickle.dumps(state_of(source)) for source, _ in own] != now:
            places.append(user_place())

    profiler = sys.getprofile()
    sys.setprofile(look)
    try:
        trace()
    finally:
        sys.setprofile(profiler)
        for source, state in own:
            set_state(source, state)
    refuse("python draw", places[0] if places else None)


class _Look:
    """A profiler that notes the lines that draw.

    It sees the calls of Python's generators. It is not told of NumPy's: their state at the next event has changed,
    which is looked at only where that is asked for, as it takes a hundred times as long.
    """

    def __init__(self, *, numpy: bool) -> None:
        self.places: list[Place | None] = []
        self._numpy = np.random.get_state() if numpy else None

    def __call__(self, _frame: FrameType, event: str, called: Any) -> None:
        if self._numpy is not None and not _same_numpy(self._numpy, state := np.random.get_state()):
            self._numpy = state
            self.places.append(user_place())
        elif event == "c_call" and getattr(called, "__self__", None) is OF_PROCESS[0] and called.__name__ in MOVING:
            self.places.append(user_place())


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _same_numpy(one: Any, other: Any) -> bool:
    (_, key, *rest), (_, other_key, *other_rest) = one, other
    return rest == other_rest and bool(np.array_equal(key, other_key))
