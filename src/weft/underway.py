"""Tell what long work is at to whoever shows it to a person, such as the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str], None]
_listeners: list[Listener] = []


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Have somebody hear what is underway, in any thread, for as long as the block lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def underway(what: str) -> None:
    """Tell what begins now: "tracing net"."""
    for listener in tuple(_listeners):
        listener(what)
