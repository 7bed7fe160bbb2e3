"""WEFT_ENGINE and WEFT_THREADS -> the one engine of this process."""

import threading
from collections.abc import Mapping

from weft.config import config
from weft.engine.base import BaseEngine
from weft.engine.engine import Engine
from weft.engine.serial import SerialEngine

# Held to make the engine once. On the other side: another thread's first use; making an engine waits for nothing.
_lock = threading.Lock()
_current: BaseEngine | None = None


def make_engine(devices: Mapping[str, int], errors: str = "every") -> BaseEngine:
    """Make an engine of the kind that WEFT_ENGINE names."""
    return SerialEngine(errors) if config().engine == "serial" else Engine(devices, errors)


def current_engine(devices: Mapping[str, int]) -> BaseEngine:
    """Give the engine of this process, made with these devices at the first call and again after it was closed."""
    global _current  # noqa: PLW0603  # one for each process: they share its cores
    with _lock:
        if _current is None or _current.closed:
            _current = make_engine(devices)
        return _current
