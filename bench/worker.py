"""The process of one contestant on one workload: it prepares the workload, then runs a turn whenever it is asked.

Its parent stops it (SIGSTOP) between turns, so that no thread pool that spins while it waits can disturb the others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench import contestants, workloads
from bench.answers import as_float64
from bench.job import CannotRunError, Job, Ready, Setting
from bench.models.subject import TrainingSubject
from weft.api.user_file import one_line
from weft.console.bench.harness import time_turn
from weft.train.processes.parent import end_with_parent

PROBE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is started for."""

    contestant: str
    workload: str
    threads: int
    first_setting_only: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """What preparing gave: the time to the first result, the setting that was fastest, remarks, and the answer."""

    first_call: float
    setting: str
    remarks: tuple[str, ...]
    answer: list[Any]
    compiles: bool


@dataclass(slots=True)
class Candidate:
    """One setting that works: its call, the time to its first result, one call's time now, and its answer."""

    setting: Setting
    ready: Ready
    first_call: float
    each: float
    answer: list[Any]


class Worker:
    """Holds the call of the chosen setting."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.contestant = contestants.by_name(task.contestant)
        self.workload = workloads.by_name(task.workload)
        self.chosen: Ready | None = None

    def prepare(self) -> Prepared:
        """Try every setting and keep the fastest; fail with all reasons if none works."""
        make = self.contestant.load()
        torch.set_num_threads(self.task.threads)
        trains = self.workload.group == workloads.TRAINING
        settings = self.contestant.settings_for(trains)
        best: Candidate | None = None
        first_call = 0.0
        remarks: list[str] = []
        for setting in settings[:1] if self.task.first_setting_only else settings:
            try:
                candidate = self._try(make, setting, probe=len(settings) > 1)
            except Exception as error:  # noqa: BLE001 - whatever a peer raises is why this setting is out, and is said
                remarks.append(f"{setting.label}: {reason_of(error)}")
                continue
            first_call = first_call or candidate.first_call
            best = candidate if best is None or candidate.each < best.each else best
        if best is None:
            raise CannotRunError("; ".join(dict.fromkeys(remark.partition(": ")[2] for remark in remarks)))
        torch.set_num_threads(best.setting.threads or self.task.threads)
        self.chosen = best.ready
        return Prepared(first_call, best.setting.label, tuple(remarks), best.answer, best.ready.compiles())

    def _try(self, make: Any, setting: Setting, probe: bool) -> Candidate:
        threads = setting.threads or self.task.threads
        torch.set_num_threads(threads)
        subject = self.workload.subject()
        with torch.inference_mode(not isinstance(subject, TrainingSubject)):
            start = time.perf_counter()
            ready = make(Job(self.workload.name, subject, threads, setting))
            result = ready.call()
            first_call = time.perf_counter() - start - ready.noting()
            for _ in range(ready.calls_before_answer - 1):
                result = ready.call()
            answer = [as_float64(array).copy() for array in ready.answer(result)]
            each = time_turn(ready.call, PROBE_SECONDS) if probe and not self.task.first_setting_only else 0.0
        return Candidate(setting, ready, first_call, each, answer)

    def turn(self, seconds: float) -> float:
        """Time one call."""
        if self.chosen is None:
            raise CannotRunError("asked for a turn before it was prepared")
        with torch.inference_mode(self.workload.group != workloads.TRAINING):
            return time_turn(self.chosen.call, seconds)


def reason_of(error: BaseException) -> str:
    """Say on one line why a contestant or a setting is out."""
    return str(error) if isinstance(error, CannotRunError) else one_line(error)


def serve(connection: Connection) -> None:
    """Answer requests until the parent closes the connection."""
    worker = Worker(connection.recv())
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, getattr(worker, name)(*arguments)))
        except Exception as error:  # noqa: BLE001 - it is sent to the parent, which reports it
            if not isinstance(error, CannotRunError):
                traceback.print_exc()
            connection.send((False, reason_of(error)))


def stay_on(cores: int) -> None:
    """Keep this process, and all threads it will start, on as many cores as it may use threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


if __name__ == "__main__":
    end_with_parent()  # a stopped process would never see a closed connection
    stay_on(int(sys.argv[2]))
    warnings.simplefilter("ignore")  # deprecations of exporters are no business of a table of times
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        # As an import: what is sent and received are classes of bench.worker, not of __main__.
        importlib.import_module("bench.worker").serve(Connection(int(sys.argv[1])))
