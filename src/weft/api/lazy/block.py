"""A block of ordinary PyTorch code -> operators that are queued as they are called, and run while Python goes on."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from sys import _getframe
from types import TracebackType
from typing import Any, TypeVar

from weft.api.lazy.entries import intercept_entries
from weft.api.lazy.intercept import LazyMode
from weft.api.lazy.looks import keep, looks_of
from weft.api.lazy.questions import place_of
from weft.api.lazy.recording import Place
from weft.api.lazy.session import SESSION
from weft.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


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
        intercept_entries(LazyMode)
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
    SESSION.own.looks = looks = looks_of(place)
    mode = LazyMode(looks)
    mode.__enter__()  # type: ignore[no-untyped-call]
    return mode


def _leave(mode: LazyMode, *, tell: bool) -> None:
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    SESSION.own.looks = None
    keep(mode.looks)
    if tell:
        SESSION.finish_and_tell()
    else:
        SESSION.finish()  # an error is on its way: another one in its place would hide it
