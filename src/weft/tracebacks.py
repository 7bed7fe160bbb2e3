"""Leave out of what an error shows the frames that its reader cannot change: Weft's own."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, TracebackType
from typing import ParamSpec, TypeVar

from weft.config import config
from weft.errors import InternalError, UsageError, WeftError
from weft.owners import TORCH, Owner, owner_of

UNEXPECTED = re.compile(r".* got an unexpected keyword argument '(?P<name>\w+)'")
MODULES = tuple(f"{folder}nn/modules/" for folder in TORCH)  # which only users' networks call
CALLING: set[CodeType] = set()
P = ParamSpec("P")
T = TypeVar("T")


def shows_less(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate what users call, so that its errors show their frames."""

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            if type(error) is TypeError:
                _suggest(error, function)
            given = arguments[0] if arguments else None
            show_less(error, getattr(given, "forward", given))
            raise

    return call


def calls_users(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate what does nothing but call what a user gave, which may be a function of PyTorch's: a loss, say."""
    CALLING.add(function.__code__)
    return function


def _suggest(error: TypeError, function: Callable[..., object]) -> None:
    """Name the parameter that an unknown one looks like, as Python does from 3.13 on."""
    found = UNEXPECTED.fullmatch(str(error))
    frame = error.__traceback__.tb_next if error.__traceback__ is not None else None
    if found is None or frame is not None:  # Python says more already, or it is another call's inside
        return
    close = difflib.get_close_matches(found["name"], inspect.signature(function).parameters, 1)
    if close:
        error.args = (f"{error}. Did you mean '{close[0]}'?",)


def show_less(error: BaseException, called: object = None) -> None:
    """Show of an error what its text says and the user's own frames; all with WEFT_LOG=debug, and of our mistakes.

    Of an error that is not Weft's, as eager PyTorch raises it in the user's code, Weft's frames around that code go.
    PyTorch's modules are such code, and what `calls_users` calls; so is `called`, where it does not take what it is
    given.
    """
    if isinstance(error, InternalError) or _shows_all():
        return
    if isinstance(error, WeftError):
        _show_users_frames(error)
        return
    frames = [*_frames(error)]
    codes = [one.tb_frame.f_code for one in frames]
    calls = [place + 1 for place, code in enumerate(codes[:-1]) if code in CALLING]
    last = max((*calls, *(place for place, one in enumerate(frames) if _is_users(one))), default=0)
    if _takes_others(error, called) and _owner(frames[-1]) is Owner.WEFT:
        last = len(frames)
    around, inside = [one for one in frames[:last] if _owner(one) is not Owner.WEFT], frames[last:]
    if Owner.WEFT not in map(_owner, inside):  # else it may be our mistake
        error.__traceback__ = _chained([*around, *inside])


def _is_users(frame: TracebackType) -> bool:
    return _owner(frame) is Owner.USER or frame.tb_frame.f_code.co_filename.startswith(MODULES)


def _takes_others(error: BaseException, called: object) -> bool:
    """Whether Python has refused the arguments of a call of this very function."""
    name = getattr(getattr(called, "__wrapped__", called), "__qualname__", None)
    return type(error) is TypeError and str(error).startswith(f"{name}() ")


def _shows_all() -> bool:
    try:
        return config().log == "debug"
    except UsageError:  # that is the error
        return False


def _show_users_frames(error: WeftError) -> None:
    """Leave only the user's frames in the traceback of an error, and of its causes: its text says the rest.

    A cause that says the same, with another way out, is not shown again; its frames are.
    """
    frames = list(_frames(error))
    cause = error.__cause__
    while isinstance(cause, WeftError) and cause.fact == error.fact:
        frames += _frames(cause)
        error.__suppress_context__, cause = True, cause.__cause__
    if cause is not error.__cause__:
        error.__cause__ = cause
    error.__traceback__ = _of_others(frames)
    while cause is not None and not isinstance(cause, InternalError):
        cause.__traceback__ = _of_others([*_frames(cause)])
        cause = cause.__cause__


def _frames(error: BaseException) -> Iterator[TracebackType]:
    place = error.__traceback__
    while place is not None:
        yield place
        place = place.tb_next


def _owner(frame: TracebackType) -> Owner:
    return owner_of(frame.tb_frame.f_code.co_filename)


def _of_others(frames: Sequence[TracebackType]) -> TracebackType | None:
    """The frames that are neither Weft's nor PyTorch's."""
    return _chained([one for one in frames if _owner(one) not in (Owner.WEFT, Owner.TORCH)])


def _chained(frames: Sequence[TracebackType]) -> TracebackType | None:
    kept: TracebackType | None = None
    for one in reversed(frames):
        kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept
