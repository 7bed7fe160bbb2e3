"""Time blocks of code, with all that they queued."""

from __future__ import annotations

import time
from html import escape
from types import TracebackType

import torch
from typing_extensions import Self

from weft.api.asynchronous import waitall
from weft.errors import UsageError


def wait_for_devices() -> None:
    """Wait for everything that is queued: Weft's own queue, and every GPU that is in use, not only the current one."""
    waitall()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)


class Benchmark:
    """Prints how long a block took: `with weft.Benchmark("copy"):` prints `copy time: 0.1234 sec`.

    With `description="copy"`, the other way in which readers know it, it prints `copy: 0.1234 sec`. What was queued
    before is waited for first, what the block queued belongs to its time. Blocks may nest.
    """

    def __init__(self, prefix: str | None = None, *, description: str | None = None) -> None:
        if prefix is not None and description is not None:
            raise UsageError("a benchmark with a prefix and a description", fix="one of them names it")
        self.label = f"{prefix} time" if prefix else description or "time"
        self.seconds = 0.0  # of the last block
        self._starts: list[float] = []

    def __enter__(self) -> Self:
        wait_for_devices()
        self._starts.append(time.perf_counter())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        start = self._starts.pop()
        if error is None:
            wait_for_devices()
            self.seconds = time.perf_counter() - start
            print(f"{self.label}: {self.seconds:.4f} sec")  # noqa: T201 - printing is what it is for

    def __repr__(self) -> str:
        return f"<weft.Benchmark, {self.label}: {self.seconds:.4f} sec>"

    def _repr_html_(self) -> str:
        """Show the time of the last block in a notebook."""
        return f"<code>{escape(self.label)}: {self.seconds:.4f} sec</code>"


class BenchMark(Benchmark):
    """The same under the other name that readers of the chapter use."""


class Timer:
    """A stopwatch that keeps every time; the devices are waited for at the start and at the stop."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.start()

    def start(self) -> None:
        """Begin to measure."""
        wait_for_devices()
        self._start = time.perf_counter()

    def stop(self) -> float:
        """Keep the time since the start, and give it."""
        wait_for_devices()
        self.times.append(time.perf_counter() - self._start)
        return self.times[-1]

    def avg(self) -> float:
        """Give the mean of the times."""
        return self.sum() / len(self.times)

    def sum(self) -> float:
        """Give their sum."""
        return sum(self.times)

    def cumsum(self) -> list[float]:
        """Give the sums of the first, of the first two, ..., of all."""
        return [sum(self.times[: count + 1]) for count in range(len(self.times))]
