"""Order changes of process-wide settings with queued operators, and tell the modes of a thread as a number.

Lazy code gives what eager code gives at the call. What belongs to a thread goes along with a segment; what belongs to
the whole process (the default dtype, say) cannot, so its setters wait until the queue is empty. What is inferred of a
call holds for the settings it was inferred under.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import get_default_dtype, is_autocast_enabled, is_grad_enabled, is_inference_mode_enabled

from weft.lazy_tensors.native_calls import ONE_FUNCTION_MODE, STACK_PLACE, Modes, native_modes
from weft.lazy_tensors.tasks import in_task
from weft.lazy_tensors.trie import use_trie_of
from weft.trace.interception.capture import traced_elsewhere
from weft.trace.interception.modes import (
    BLOCKS,
    SETTERS,
    announce,
    function_mode_count,
    functions_are_intercepted,
    open_blocks,
)

MOST_NUMBERS = 64
_flush = torch.set_flush_denormal  # not the one that is announced: a worker's own thread is nobody's setting
_SMALLEST = [sys.float_info.min]  # in a list: the compiler of Python would compute the product below beforehand


class ProcessSettings:
    """The settings of this process as a number, and whether under them operators have to run at their calls."""

    def __init__(self) -> None:
        self.number = 0
        self.eager = False
        self._blocks = 0
        self._values: dict[str, str] = {}
        self._numbers: dict[Any, int] = {(): 0}
        self._finish: Callable[[], None] | None = None

    def watch(self, finish: Callable[[], None]) -> None:
        """From now on let `finish` do all that is queued before a setting changes; asked for again, it does nothing."""
        if self._finish is not None:
            return
        self._finish = finish
        self._blocks = open_blocks()
        self._look()
        for owner, name in SETTERS:
            announce(owner, name, lambda call, given, name=name: self._set(name, call, given))  # type: ignore[misc]
        for owner, name, step in BLOCKS:
            announce(owner, name, lambda call, _, step=step: self._step(step, call))  # type: ignore[misc]

    def _set(self, name: str, call: Callable[[], Any], given: Any) -> Any:
        self._before()
        result = call()
        # The one set last comes last, as two functions may set the same thing. By its text, as a list is no key.
        self._values.pop(name, None)
        self._values[name] = repr(given)
        self._look()
        return result

    def _step(self, step: int, call: Callable[[], Any]) -> Any:
        if in_task():
            return call()  # the block of a worker: nothing is recorded there
        self._before()
        result = call()
        self._blocks = max(self._blocks + step, 0)
        self._look()
        return result

    def _before(self) -> None:
        # A task cannot wait for itself; and what it sets, others may see at any time in any case.
        if self._finish is not None and not in_task():
            self._finish()

    def _look(self) -> None:
        self.eager = self._blocks > 0 or torch.is_anomaly_enabled()
        key = (*self._values.items(), self.eager) if self._values or self.eager else ()
        if len(self._numbers) > MOST_NUMBERS:
            self._numbers.clear()
        following = max(self.number, *self._numbers.values(), 0) + 1
        self.number = self._numbers.setdefault(key, following)
        use_trie_of(self.number)


def flushes_denormals() -> bool:
    """Whether this thread takes the smallest numbers for 0: PyTorch sets it, and tells nobody."""
    return _SMALLEST[0] * 0.5 == 0


@contextmanager
def flushing_denormals(flushes: bool) -> Iterator[None]:
    """Let this thread take the smallest numbers for 0, or not, in the block: threads inherit it when they begin."""
    before = flushes_denormals()
    if before == flushes:
        yield
        return
    _flush(flushes)
    try:
        yield
    finally:
        _flush(before)


ONE_MODE = ONE_FUNCTION_MODE
"""What one more function mode adds to the number."""
MODE_COUNT = 0xFF * ONE_FUNCTION_MODE
"""The bits that count them."""
_TYPES: dict[torch.dtype, int] = {}


def modes_by_questions() -> int:
    """Ask PyTorch's Python interface; the numbers are others than those of the native function."""
    flags = (
        is_grad_enabled(),
        is_inference_mode_enabled(),
        traced_elsewhere(()),
        is_autocast_enabled("cpu"),
        functions_are_intercepted(),
    )
    kind = get_default_dtype()
    high = function_mode_count() << STACK_PLACE | _TYPES.setdefault(kind, len(_TYPES)) << (STACK_PLACE + 8)
    return sum(flag << place for place, flag in enumerate(flags)) | high


modes: Modes = native_modes() or modes_by_questions
