"""Tasks in the order of their pushes -> tasks at the same time, wherever what they read and write allows."""

from weft.engine.base import BaseEngine, Statistics
from weft.engine.default import current_engine, make_engine
from weft.engine.engine import Engine
from weft.engine.native import NativeTask
from weft.engine.serial import SerialEngine
from weft.engine.simulated import SimulatedEngine, VirtualClock
from weft.engine.task import Placement, Var
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
