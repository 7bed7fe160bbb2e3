"""A block of ordinary PyTorch code -> operators that are queued as they are called, and run while Python goes on."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from sys import _getframe
from types import TracebackType
from typing import Any, TypeVar

from torch.overrides import TorchFunctionMode

from weft.api.lazy.entries import intercept_entries
from weft.api.lazy.modes import modes
from weft.api.lazy.operators import MISSED, queued, shorten
from weft.api.lazy.outside import install
from weft.api.lazy.questions import place_of
from weft.api.lazy.session import SESSION
from weft.errors import UsageError
from weft.trace.modes import remove_function_mode

Function = TypeVar("Function", bound=Callable[..., Any])


class _LazyMode(TorchFunctionMode):
    """Hands every call of a function of PyTorch to the session."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        SESSION.pauses.calls += 1
        if func in EXPECTED:
            result = queued(func, args, kwargs, modes())
            if result is not MISSED:
                return result
        return SESSION.call(func, args, kwargs)


EXPECTED = SESSION.queued  # of the other functions no recording expects a call
install()
shorten(_LazyMode)


class _Own(threading.local):
    """How deep each thread is in lazy blocks, and the mode it entered for good."""

    depth = 0
    lasting: _LazyMode | None = None


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
        self._modes: list[_LazyMode | None] = []
        intercept_entries(_LazyMode)
        SESSION.settings.watch(SESSION.finish)
        if active is not None:
            _set_lasting(active)

    def __enter__(self) -> None:
        mode = None
        if _OWN.depth == 0 and _OWN.lasting is None:
            mode = _LazyMode()
            mode.__enter__()  # type: ignore[no-untyped-call]
            SESSION.pauses.begin(mode, place_of(_getframe(1)))
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


def _set_lasting(active: bool) -> None:
    if active and _OWN.lasting is None:
        _OWN.lasting = _LazyMode()
        _OWN.lasting.__enter__()  # type: ignore[no-untyped-call]
        SESSION.pauses.begin(_OWN.lasting)
    elif not active and _OWN.lasting is not None:
        mode, _OWN.lasting = _OWN.lasting, None
        _leave(mode, tell=True)


def _leave(mode: _LazyMode, *, tell: bool) -> None:
    paused = SESSION.pauses.here()
    SESSION.pauses.ended()
    if paused:
        remove_function_mode(mode)  # which an interrupted pause may have left there
    else:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    if tell:
        SESSION.finish_and_tell()
    else:
        SESSION.finish()  # an error is on its way: another one in its place would hide it
