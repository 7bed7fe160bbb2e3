"""Watch what arrays of bound symbols are like while they train: `mx.mon.Monitor`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from weft.mx.arrays.ndarray import NDArray


def _size_of_elements(x: NDArray) -> NDArray:
    found: NDArray = x.norm() / x.size**0.5
    return found


class Monitor:
    """Looks at outputs of operators and at parameters whose names match, every so many batches."""

    def __init__(
        self,
        interval: int,
        stat_func: Callable[[NDArray], Any] | None = None,
        pattern: str = ".*",
        sort: bool = False,
        monitor_all: bool = False,
    ) -> None:
        self.interval, self.sort, self.monitor_all = interval, sort, monitor_all
        self.stat_func = stat_func or _size_of_elements
        self.re_prog = re.compile(pattern)
        self.queue: list[tuple[int, str, Any]] = []
        self.step, self.activated = 0, False
        self.exes: list[Any] = []

    def stat_helper(self, name: str, array: NDArray) -> None:
        """Note what an array is like, if this batch is watched."""
        if self.activated and self.re_prog.match(name):
            self.queue.append((self.step, name, self.stat_func(array)))

    def install(self, exe: Any) -> None:
        """Watch an executor."""
        exe.set_monitor_callback(self.stat_helper, self.monitor_all)
        self.exes.append(exe)

    def tic(self) -> None:
        """Begin a batch."""
        if self.step % self.interval == 0:
            self.queue, self.activated = [], True
        self.step += 1

    def toc(self) -> list[tuple[int, str, str]]:
        """End a batch: gives what was noted, as text."""
        if not self.activated:
            return []
        for exe in self.exes:
            for name, array in (*exe.arg_dict.items(), *exe.aux_dict.items()):
                self.stat_helper(name, array)
        self.activated = False
        found = sorted(self.queue, key=lambda noted: noted[1]) if self.sort else self.queue
        self.queue = []
        return [(step, name, _shown(value)) for step, name, value in found]

    def toc_print(self) -> None:
        """End a batch, and log what was noted."""
        for step, name, value in self.toc():
            logging.info("Batch: %7d %30s %s", step, name, value)  # noqa: LOG015  # where programs look for it


def _shown(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, NDArray) for each in values):
        raise AssertionError("stat_func gives an array, or a list of them")
    return "".join(f"{each.asscalar() if each.size == 1 else each.asnumpy()}\t" for each in values)
