"""Record which functions and lines of `src` each test executes, once for each test file, and keep it.

A pytest plugin with a light tracer: every call of a function of `src` is noted, lines only in its first few calls.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

# A function's branches show in its first calls; a sweep that calls it a million times is not slowed down by lines.
CALLS_WITH_LINES = 12


class Recorder:
    """The plugin: `tests` gives for each test that passed how long it took, and what it executed."""

    def __init__(self, source: Path) -> None:
        self.prefix = f"{source}/"
        self.tests: dict[str, dict[str, Any]] = {}
        self.lines: dict[CodeType, set[int]] = defaultdict(set)
        self.calls: dict[CodeType, int] = defaultdict(int)
        self.ours: dict[CodeType, bool] = {}
        self.passed: dict[str, bool] = {}
        self.seconds: dict[str, float] = defaultdict(float)

    def on_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Note a call: the global trace function."""
        code = frame.f_code
        ours = self.ours.get(code)
        if ours is None:
            ours = self.ours[code] = code.co_filename.startswith(self.prefix)
        if not ours:
            return None
        self.calls[code] += 1
        if self.calls[code] > CALLS_WITH_LINES:
            return None
        return self.on_line

    def on_line(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Note a line."""
        self.lines[frame.f_code].add(frame.f_lineno)
        return self.on_line

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test with its fixtures."""
        self.lines.clear()
        self.calls.clear()
        threading.settrace(self.on_call)
        sys.settrace(self.on_call)
        yield
        sys.settrace(None)
        if self.passed.get(item.nodeid) and item.nodeid not in self.tests:
            self.tests[item.nodeid] = {"seconds": round(self.seconds[item.nodeid], 3), "reached": self._reached()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended, and how long it took."""
        self.seconds[report.nodeid] += report.duration
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and report.outcome == "passed"

    def _reached(self) -> dict[str, dict[str, list[int]]]:
        reached: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for code in list(self.calls):
            path = f"src/weft/{code.co_filename[len(self.prefix) :]}"
            reached[path][function_name(code)] |= self.lines.get(code, set())
        return {path: {name: sorted(lines) for name, lines in found.items()} for path, found in reached.items()}


def function_name(code: CodeType) -> str:
    """Give the name of the function that a code object is part of, as `Class.function`."""
    parts = getattr(code, "co_qualname", code.co_name).split(".")
    return ".".join(part for part in parts if not part.startswith("<"))


def record(arguments: list[str], source: Path, result: Path) -> int:
    """Run pytest here with a recorder, and write what it found."""
    recorder = Recorder(source)
    code = pytest.main(arguments, plugins=[recorder])
    result.write_text(json.dumps(recorder.tests), encoding="utf-8")
    return int(code)
