"""Defer Ctrl-C to the end of a block whose changes belong together."""

from __future__ import annotations

import signal
from collections.abc import Callable
from importlib import import_module
from threading import get_ident, main_thread
from types import FrameType
from typing import Any

# Ctrl-C, and what asks a process to end: a program may let either raise an exception.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What the functions of `signal` call. Those look up each handler in an enumeration, which costs a block 10 us.
_SIGNALS = import_module("_signal")


class interrupts_after:  # noqa: N801 - it reads as the block that it begins
    """Let an interrupt take effect at the end of the block; only the main thread is ever told of one.

    Parts of it may be `cut_short`. Where one was, the next interrupt waits for the end again, so that what was begun
    can be undone.
    """

    __slots__ = ("_former", "_is_over", "_may_cut", "_noticed")

    def __init__(self) -> None:
        self._former: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._noticed: tuple[int, FrameType | None] | None = None
        self._may_cut = False
        self._is_over = False

    def __enter__(self) -> interrupts_after:  # noqa: PYI034 - nothing is derived from it
        if get_ident() == main_thread().ident:
            for number in SIGNALS:
                former = _SIGNALS.getsignal(number)
                if callable(former):  # else it is ignored, ends the process, or somebody handles it outside of Python
                    self._former[number] = former
                    _SIGNALS.signal(number, self._notice)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            for number, former in reversed(self._former.items()):
                _SIGNALS.signal(number, former)
        finally:
            self._is_over = True
        self._take_effect()

    def cut_short(self) -> _CutShort:
        """Begin a part that an interrupt may cut short."""
        return _CutShort(self)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self._may_cut or self._is_over:  # over: the other signal came before the handler of this one was back
            may_cut, self._may_cut = self._may_cut, False
            self._former[number](number, frame)
            self._may_cut = may_cut  # it has raised nothing
        else:
            self._noticed = (number, frame)

    def _take_effect(self) -> None:
        if self._noticed is not None:
            (number, frame), self._noticed = self._noticed, None
            self._former[number](number, frame)


class _CutShort:
    __slots__ = ("_whole",)

    def __init__(self, whole: interrupts_after) -> None:
        self._whole = whole

    def __enter__(self) -> None:
        self._whole._take_effect()
        self._whole._may_cut = True

    def __exit__(self, *error: object) -> None:
        self._whole._may_cut = False
