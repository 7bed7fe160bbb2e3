"""Run calls on worker threads, also while the interpreter ends and begins no more of them.

Python lets non-daemon threads and exit handlers go on after the main thread is done, but refuses every new future from
then on. What such code asks of Weft still has to come: whoever asks then does the work itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from weft.errors import OutOfMemoryError

Found = TypeVar("Found")


class WorkerThreads(ThreadPoolExecutor):
    """A thread pool that runs calls in the thread of the caller once the interpreter ends."""

    _is_closed = False

    def submit(self, function: Callable[..., Found], /, *arguments: Any, **keywords: Any) -> Future[Found]:
        """Let a thread run a call."""
        try:
            return super().submit(function, *arguments, **keywords)
        except RuntimeError as error:
            if "start new thread" in str(error):
                raise OutOfMemoryError(
                    "no more threads can be started",
                    why="there is no memory for their stacks, or a limit of threads",
                    fix="free memory, or raise the limits (ulimit -v, ulimit -u)",
                ) from error
            if self._is_closed or "shutdown" not in str(error):
                raise
        future: Future[Found] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*arguments, **keywords))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it, as from a thread
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls."""
        self._is_closed = True
        super().shutdown(wait, cancel_futures=cancel_futures)


def in_a_thread(function: Callable[[], Found]) -> Found:
    """Run a call in a new thread, which begins without the modes of this one, and wait for it."""
    future: Future[Found] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)

    # A thread of its own, and no pool: those are refused while the interpreter ends, and a call in the caller's thread
    # would have the modes that this is to get rid of.
    threading.Thread(target=run, name="weft search").start()
    return future.result()


def is_ending() -> bool:
    """Whether the main thread is done: what would be prepared for later is not worth beginning."""
    return not threading.main_thread().is_alive()
