"""Measure one workload by all contestants: answers checked first, then times taken in turn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.answers import Reference, Verdict, reference
from bench.contestants import Contestant
from bench.job import CannotRunError, Job, Setting
from bench.machine import foreign_cores, load
from bench.remote import Remote
from bench.row import Entry, Row
from bench.torch_contestants import eager
from bench.worker import Prepared, Task
from bench.workloads import Workload
from weft.console.bench.harness import TurnLimits, interleave

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure: threads, limits, how long to wait, whether one setting and one compilation will do."""

    threads: int
    limits: TurnLimits
    patience: float
    quick: bool
    folder: Path


@dataclass(frozen=True, slots=True)
class Started:
    """A contestant that has given an answer and may be timed."""

    remote: Remote
    prepared: Prepared
    verdict: Verdict
    cached_first_call: float | None


def measure(workload: Workload, contestants: Sequence[Contestant], options: Options, say: Say) -> Row:
    """Prepare every contestant, check its answer, time those that are not wrong in turn, and end them all."""
    torch.set_num_threads(options.threads)
    expected = reference(workload)
    operations = count_operations(workload)
    started: dict[str, Started] = {}
    skipped: dict[str, str] = {}
    try:
        for contestant in contestants:
            try:
                found = _start(contestant, workload, options, expected)
            except CannotRunError as error:
                skipped[contestant.name] = str(error)
                say(f"  {contestant.name:<18} skipped: {error}")
                continue
            started[contestant.name] = found
            prepared, verdict = found.prepared, found.verdict
            said = f"first call {prepared.first_call:.3f} s, {prepared.setting}"
            say(f"  {contestant.name:<18} {verdict.word} (error {verdict.error:.1e} of {verdict.allowed:.1e}), {said}")
        able = [found.remote for found in started.values() if found.verdict.may_compete]
        processes = [remote.process.pid for remote in able]
        before = load(processes)
        times = interleave(able, options.limits)
        foreign = foreign_cores(before, load(processes))
    finally:
        for found in started.values():
            found.remote.close()
    wrong = {name: "the answer is wrong" for name, found in started.items() if not found.verdict.may_compete}
    entries = {name: _entry(started[name], figures) for name, figures in times.rounds.items()}
    return Row(workload, entries, {**skipped, **wrong, **times.dropped}, foreign, times.settled, operations)


def _start(contestant: Contestant, workload: Workload, options: Options, expected: Reference) -> Started:
    reason = contestant.missing()
    if reason is not None:
        raise CannotRunError(reason)
    folder = options.folder / workload.name / contestant.name.replace(" ", "_")
    remote = Remote(contestant, Task(contestant.name, workload.name, options.threads, options.quick), folder)
    try:
        prepared = remote.prepare(options.patience)
        verdict = expected.judge(prepared.answer)
        cached = _cached_first_call(contestant, workload, options, folder)
    except BaseException:  # also Ctrl-C: no process may be left behind
        remote.close()
        raise
    return Started(remote, prepared, verdict, cached)


def _cached_first_call(contestant: Contestant, workload: Workload, options: Options, folder: Path) -> float | None:
    """Prepare once more in a new process that finds the caches of the first."""
    if not contestant.caches or options.quick:
        return None
    task = Task(contestant.name, workload.name, options.threads, first_setting_only=True)
    remote = Remote(contestant, task, folder)
    try:
        return remote.prepare(options.patience).first_call
    finally:
        remote.close()


def _entry(started: Started, figures: Sequence[float]) -> Entry:
    prepared, verdict = started.prepared, started.verdict
    return Entry(
        rounds=tuple(figures),
        first_call=prepared.first_call,
        cached_first_call=started.cached_first_call,
        setting=prepared.setting,
        remarks=prepared.remarks,
        error=verdict.error,
        allowed=verdict.allowed,
        verdict=verdict.word,
        compiles=prepared.compiles,
    )


def count_operations(workload: Workload) -> int:
    """Count the floating-point operations of products and convolutions in one call."""
    ready = eager(Job(workload.name, workload.subject(), torch.get_num_threads(), Setting("plain")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's, that oneDNN on GPUs is not there
        # Without oneDNN, whose recurrent layers the counter does not know, they are products.
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
            ready.call()
    return int(counter.get_total_flops())
