"""End every engine, or begin it anew, in a defined way when the process ends or forks.

A child process gets each engine with no task and no thread; they start with the first push. What the parent had
queued runs in the parent only: a variable that was being computed at the fork is poisoned in the child. At the end
of the process the queue is finished and the errors nobody waited for are printed.
"""

import atexit
import gc
import os
import sys
import weakref
from contextlib import suppress
from typing import Protocol

from weft.errors import ExecutionError

WATCHED: "weakref.WeakSet[Mortal]" = weakref.WeakSet()


class Mortal(Protocol):
    """An engine, as far as the life of its process concerns it."""

    def before_fork(self) -> None:
        """Come to a state that can be copied."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Begin anew."""

    def close(self, finish: bool = True) -> None:
        """Finish what is queued and end."""


def watch(engine: Mortal) -> None:
    """See to an engine when the process forks or ends, for as long as somebody holds it."""
    WATCHED.add(engine)


def _before_fork() -> None:
    for engine in list(WATCHED):
        engine.before_fork()


def _after_fork_in_parent() -> None:
    for engine in list(WATCHED):
        engine.after_fork_in_parent()


def _after_fork_in_child() -> None:
    # No collection meanwhile: a finalizer may push a deletion, and the engine still counts its parent's tasks as in
    # flight, so that the push might wait for room that nobody in this process will make.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for engine in list(WATCHED):
            engine.after_fork_in_child()
    finally:
        if collecting:
            gc.enable()


def _at_exit() -> None:
    for engine in list(WATCHED):
        try:
            with suppress(KeyboardInterrupt):  # the queue is dropped then; the other engines still end in order
                engine.close()
        except ExecutionError as error:  # a timeline that cannot be written
            sys.excepthook(ExecutionError, error, None)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
