"""Order tasks by what they read and write, and run them at the same time wherever that allows.

The one engine of a process is made here, of the kind that WEFT_ENGINE names.
"""

import sys
import threading
from collections.abc import Callable, Mapping

from weft.config import config
from weft.engine.base import BaseEngine, Statistics
from weft.engine.engine import Engine
from weft.engine.serial import SerialEngine
from weft.engine.simulated import SimulatedEngine, VirtualClock
from weft.engine.task import NativeTask, Placement, Var
from weft.engine.timeline import Timeline

__all__ = [
    "BaseEngine",
    "Engine",
    "SerialEngine",
    "SimulatedEngine",
    "VirtualClock",
    "current_engine",
    "make_engine",
    "Var",
    "Placement",
    "NativeTask",
    "Statistics",
    "Timeline",
]

# Seconds after which a thread that computes in Python lets another have the interpreter. A worker that comes back from
# machine code needs two or three microseconds of Python before its next task; at Python's own 5 ms it may wait a
# thousand times that for a main thread that goes on in Python. Measured: 30 steps of 300 us in Python that each push
# 500 us of machine code take 900 us each at 5 ms and 680 us at 0.1 ms (560 is ideal); less gains nothing.
SWITCH_INTERVAL = 1e-4

# Held to make the engine once. On the other side: another thread's first use; making an engine waits for nothing.
_lock = threading.Lock()
_current: BaseEngine | None = None


def make_engine(devices: Mapping[str, int], errors: str = "every") -> BaseEngine:
    """Make an engine of the kind that WEFT_ENGINE names."""
    return SerialEngine(errors) if config().engine == "serial" else Engine(devices, errors)


def current_engine(devices: Callable[[], Mapping[str, int]]) -> BaseEngine:
    """Give the engine of this process, made with these devices at the first call and again after it was closed.

    It shortens the interpreter's switch interval, for the whole process, to SWITCH_INTERVAL where it is longer.
    """
    global _current  # noqa: PLW0603  # one for each process: they share its cores
    found = _current
    if found is not None and not found.closed:
        return found
    with _lock:
        if _current is None or _current.closed:
            _current = make_engine(devices())
            if isinstance(_current, Engine):
                sys.setswitchinterval(min(SWITCH_INTERVAL, sys.getswitchinterval()))
        return _current
