"""Time the operators of a part of a program, and write what ran when for Chrome's viewer: `mx.profiler`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from weft.mx.arrays import queue

HEAD = "{:<40} {:>12} {:>16} {:>16} {:>16} {:>16}"
_settings: dict[str, Any] = {"filename": "profile.json"}
_lock = threading.Lock()  # On the other side: a task that notes its time; it waits for nothing while it has this.
_events: list[tuple[str, str, float, float]] = []


def set_config(**given: Any) -> None:
    """Say where `dump` writes (`filename`); what is timed are all operators, whatever else is asked for."""
    _settings.update(given)


profiler_set_config = set_config


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Begin (`run`) or end (`stop`) timing."""
    _ = profile_process
    if state not in ("run", "stop"):
        raise ValueError(f"state must be 'run' or 'stop', not {state!r}")
    queue.watch_tasks(_timed if state == "run" else None)


profiler_set_state = set_state


def start(profile_process: str = "worker") -> None:
    """Begin timing."""
    set_state("run", profile_process)


def stop(profile_process: str = "worker") -> None:
    """End timing."""
    set_state("stop", profile_process)


def pause(profile_process: str = "worker") -> None:
    """Pause timing."""
    set_state("stop", profile_process)


def resume(profile_process: str = "worker") -> None:
    """Go on with timing."""
    set_state("run", profile_process)


def _timed(task: Callable[[], object], name: str) -> Callable[[], object]:
    """The same task, which notes when it began and how long it took."""

    def run() -> object:
        began = time.perf_counter()
        try:
            return task()
        finally:
            _note(name, "operator", began)

    return run


def _note(name: str, kind: str, began: float) -> None:
    with _lock:
        _events.append((name, kind, began, time.perf_counter() - began))


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Write what was timed to the file, for chrome://tracing: waits for all that is queued."""
    _ = profile_process
    queue.waitall()
    with _lock:
        found = list(_events)
    rows = [
        {"name": name, "cat": kind, "ph": "X", "ts": began * 1e6, "dur": took * 1e6, "pid": 0, "tid": 0}
        for name, kind, began, took in found
    ]
    Path(_settings["filename"]).write_text(json.dumps({"traceEvents": rows}), encoding="utf-8")
    if finished:
        stop()


dump_profile = dump


def dumps(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """Count and time each operator, as a table or as JSON: waits for all that is queued."""
    queue.waitall()
    with _lock:
        found = list(_events)
        if reset:
            _events.clear()
    times: dict[str, list[float]] = {}
    for name, _, _, took in found:
        times.setdefault(name, []).append(1e3 * took)
    rows = [(name, len(each), sum(each), min(each), max(each), sum(each) / len(each)) for name, each in times.items()]
    place = {"count": 1, "total": 2, "min": 3, "max": 4, "avg": 5}[sort_by]
    rows.sort(key=lambda row: row[place], reverse=not ascending)
    if format == "json":
        names = ("Count", "Total", "Min", "Max", "Avg")
        return json.dumps({"Time": {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}, "Unit": "ms"})
    lines = ["Profile Statistics:", HEAD.format("Name", "Total Count", "Time (ms)", "Min Time (ms)", "Max Time (ms)",
                                                "Avg Time (ms)")]  # fmt: skip
    lines += [HEAD.format(row[0], row[1], *(f"{number:.4f}" for number in row[2:])) for row in rows]
    return "\n".join(lines)


class Span:
    """A part of a program that is timed by hand: `start`, `stop`, or a `with` block."""

    def __init__(self, name: str, *_domain: Any, **_given: Any) -> None:
        self.name = name
        self._began = 0.0

    def start(self) -> None:
        """Begin."""
        self._began = time.perf_counter()

    def stop(self) -> None:
        """End."""
        _note(self.name, type(self).__name__.lower(), self._began)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def __str__(self) -> str:
        return self.name


class Event(Span):
    """A part of a program, within one thread."""


class ProfilerTask(Span):
    """A part of a program, which a domain may have many of."""

    def __init__(self, domain: Any, name: str) -> None:
        super().__init__(name)
        self.domain = domain


class ProfilerFrame(ProfilerTask):
    """A part of a program that comes again and again."""


class Domain:
    """A name that tasks and frames belong to."""

    def __init__(self, name: str) -> None:
        self.name = name

    def new_task(self, name: str) -> ProfilerTask:
        """A task of it."""
        return ProfilerTask(self, name)

    def new_frame(self, name: str) -> ProfilerFrame:
        """A frame of it."""
        return ProfilerFrame(self, name)

    def __str__(self) -> str:
        return self.name


Task, Frame = ProfilerTask, ProfilerFrame  # MXNet's names
