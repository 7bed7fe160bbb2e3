"""Give users lazy blocks, waits and orders to the engine: how much may be queued, and what happened."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from sys import _getframe
from types import TracebackType
from typing import Any, TypeVar

import torch

from weft import devices
from weft.api.hybrid import Hybrid
from weft.api.spawn import Spawned, placed, resolved
from weft.api.step import Step
from weft.engine import Statistics, Timeline
from weft.engine.limit import Bound
from weft.errors import UsageError
from weft.files import given_file
from weft.lazy_tensors.backoff import keep_backoff, take_backoff
from weft.lazy_tensors.intercept import LazyMode, intercept_entries
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tasks import Place, engine, place_of
from weft.trace.interception.capture import without_functions
from weft.tracebacks import shows_less

Function = TypeVar("Function", bound=Callable[..., Any])

# The methods that call programs and that trace them: they are given ordinary tensors.
PROGRAM_CALLS = ((Hybrid, "_call"), (Step, "_trains"))
PROGRAM_TRACES = ((Hybrid, "_trace"),)


class _Own(threading.local):
    """How deep each thread is in lazy blocks, and the mode it entered for good."""

    depth = 0
    lasting: LazyMode | None = None


_OWN = _Own()


class lazy:  # noqa: N801  # it reads as a word of the language
    """Make ordinary PyTorch asynchronous: `with weft.lazy():`, `@weft.lazy()`, or `weft.lazy(True)` for the session.

    Operators return at once; looking at a value waits. Leaving the block waits for all that is queued, as code outside
    may use the same tensors unseen, and raises what kept one of them from being changed. `weft.lazy(False)` ends what
    `weft.lazy(True)` began, in this thread.
    """

    def __init__(self, active: bool | None = None) -> None:
        if active is not None and not isinstance(active, bool):
            raise UsageError(f"weft.lazy({active!r})", fix="decorate with @weft.lazy(), or give True or False")
        self._modes: list[LazyMode | None] = []
        intercept_entries(LazyMode, PROGRAM_CALLS, PROGRAM_TRACES)
        SESSION.settings.watch(SESSION.finish)
        if active is not None:
            _set_lasting(active, place_of(_getframe(1)))

    def __enter__(self) -> None:
        mode = None
        if _OWN.depth == 0 and _OWN.lasting is None:
            mode = _entered(place_of(_getframe(1)))
        _OWN.depth += 1
        self._modes.append(mode)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _OWN.depth -= 1
        mode = self._modes.pop()
        if mode is not None:
            _leave(mode, tell=error is None)

    def __call__(self, function: Function) -> Function:
        """Decorate a function: its body is a lazy block."""

        @functools.wraps(function)
        def lazily(*args: Any, **kwargs: Any) -> Any:
            with lazy():
                return function(*args, **kwargs)

        return lazily  # type: ignore[return-value]


def _set_lasting(active: bool, place: Place) -> None:
    if active and _OWN.lasting is None:
        _OWN.lasting = _entered(place)
    elif not active and _OWN.lasting is not None:
        mode, _OWN.lasting = _OWN.lasting, None
        _leave(mode, tell=True)


def _entered(place: Place) -> LazyMode:
    SESSION.own.backoff = backoff = take_backoff(place)
    mode = LazyMode(backoff)
    mode.__enter__()  # type: ignore[no-untyped-call]
    return mode


def _leave(mode: LazyMode, *, tell: bool) -> None:
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    SESSION.own.backoff = None
    keep_backoff(mode.backoff)
    if tell:
        SESSION.finish_and_tell()
    else:
        SESSION.finish()  # an error is on its way: another one in its place would hide it


@shows_less
def wait(thing: Any) -> Any:
    """Wait until a tensor, or those in nested lists, tuples and dicts, are computed; gives the ordinary tensors."""
    with without_functions():
        return SESSION.settled(resolved(thing))


@shows_less
def waitall() -> None:
    """Wait for everything that is queued, on all devices; raise the first failure, naming the others."""
    with without_functions():
        SESSION.waitall()


@shows_less
def ready(tensor: torch.Tensor | Spawned) -> bool:
    """Tell whether looking at a tensor, or at what was spawned, would not wait."""
    if isinstance(tensor, Spawned):
        return tensor.ready()
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(
            f"weft.ready was given a {type(tensor).__name__}",
            fix="give it a tensor, or what weft.spawn gave: all(map(weft.ready, tensors)) for several",
        )
    with without_functions():
        return SESSION.ready(tensor)


@shows_less
def limit(bytes: Bound = None, tasks: Bound = None) -> None:  # noqa: A002  # the public name
    """Bound what may be queued; past it, whoever queues more waits. None leaves a bound as it is.

    At first it is a quarter of memory and 65,536 tasks; `limit(bytes="default", tasks="default")` goes back to that.
    """
    engine().limit(bytes=bytes, tasks=tasks)


def engine_statistics() -> Statistics:
    """Count what the engine did so far."""
    return engine().statistics()


@shows_less
def trace_to(path: str | os.PathLike[str]) -> Timeline:
    """Record every task from now on; closing what this gives, or the end of the process, writes the file.

    To close it, also as a `with` block, waits for what is queued.
    """
    return engine().trace_to(given_file(path, "trace_to", 'weft.trace_to("tasks.json.gz")'), SESSION.finish)


@shows_less
def on(device: str | torch.device | devices.Device) -> AbstractContextManager[devices.Device]:
    """Place the work of a block on a device by hand: `with weft.on("cpu:1"):`."""
    return _on(devices.parse(device))


@contextmanager
def _on(device: str | torch.device | devices.Device) -> Iterator[devices.Device]:
    SESSION.end_recording()
    try:
        with devices.on(device) as place, placed(str(place)):
            yield place
    finally:
        SESSION.end_recording()
