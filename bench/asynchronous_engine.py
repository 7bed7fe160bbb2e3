"""Measure what the engine itself costs, a push and the way of a task through it, by tasks that do nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from weft.engine import Engine, Var

TASKS, ROUNDS = 20_000, 15
PUSH_BAR, THROUGH_BAR = 3.0, 5.0  # microseconds


def nothing() -> None:
    """Be an empty task."""


def pushed(engine: Engine, lane: str, variables: Sequence[Var], *, through: bool = False) -> float:
    """Push empty tasks, each of which changes one of the variables: the seconds of one push, or way `through`."""
    push, count = engine.push, len(variables)
    writes = [(variables[number % count],) for number in range(TASKS)]
    start = time.perf_counter()
    for written in writes:
        push(nothing, (), written, lane)
    if through:
        engine.waitall()
    return (time.perf_counter() - start) / TASKS


def push_while_lanes_are_busy() -> float:
    """Push to a lane whose task is in machine code, as an operator is: nothing but the push runs Python."""
    with Engine({"cpu": 1}) as engine:
        done = threading.Event()
        engine.push(done.wait, device="cpu:0")
        try:
            return pushed(engine, "cpu:0", [Var()])
        finally:
            done.set()


def push_while_lanes_run() -> float:
    """Push to a lane that runs the tasks meanwhile: the two threads share the interpreter."""
    with Engine({"cpu": 1}) as engine:
        return pushed(engine, "cpu:0", [Var()])


def through(lane: str, lanes: int, variables: int) -> float:
    """Push, and wait for all of them: the seconds of one task."""
    with Engine({"cpu": lanes}) as engine:
        found = pushed(engine, lane, [Var() for _ in range(variables)], through=True)
        if engine.statistics().done != TASKS:
            raise SystemExit(f"{engine.statistics().done} of {TASKS} tasks were done")
        return found


def engine() -> str:
    """What a task that does nothing costs: its push at most 3 us, its way through the engine at most 5 us."""
    ways: dict[str, tuple[float, Callable[[], float]]] = {
        "push, lane busy": (PUSH_BAR, push_while_lanes_are_busy),
        "push, lane runs": (PUSH_BAR, push_while_lanes_run),
        "through one lane": (THROUGH_BAR, lambda: through("cpu:0", 1, 1)),
        "through one lane, 1000 variables": (THROUGH_BAR, lambda: through("cpu:0", 1, 1000)),
        "through a device of two lanes": (THROUGH_BAR, lambda: through("cpu", 2, 1000)),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (_, way) in ways.items():
            found[name].append(way() * 1e6)
    parts = []
    for name, times in found.items():
        times.sort()
        parts.append(f"{name} {times[0]:.2f} us, median {times[len(times) // 2]:.2f} (bar {ways[name][0]:.0f})")
    return "an empty task, fastest of " + f"{ROUNDS} x {TASKS}: " + "; ".join(parts)
