"""Sections -> records, in worker processes that may die or hang without ending the run."""

import multiprocessing
import multiprocessing.connection
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
from tests.conformance.cases import Record, Section, Status
from tests.conformance.contestants import CONTESTANTS
from tests.conformance.judge import judge

from weft.config import overrides

SECONDS_FOR_A_SAMPLE = 60.0
SECONDS_TO_START = 180.0  # a process imports PyTorch's databases and makes an entry's samples
PATIENCE = 1.0  # how often the parent looks for samples that are over their time
UNITS_FOR_A_WORKER = 150  # then a fresh process: no run depends on what thousands of samples left behind


@dataclass(frozen=True)
class Seeded:
    """Chooses so many samples of each entry, the same ones in every process."""

    count: int
    seed: int = 0

    def __call__(self, entry: str, count: int) -> Sequence[int]:
        """Choose among `count` samples of an entry."""
        return sorted(random.Random(f"{self.seed} {entry}").sample(range(count), min(count, self.count)))


@dataclass(frozen=True)
class Options:
    """What to run of each entry, and against whom."""

    contestant: str = "hybridize"
    limit: int | None = None
    sample: int | None = None
    pick: Callable[[str, int], Sequence[int]] | None = None


@dataclass(frozen=True)
class Unit:
    """One entry of one section, from the sample `start` on, with programs compiled in one way."""

    section: str
    entry: str
    start: int = 0
    codegen: str = "library"


def chosen(options: Options, entry: str, count: int, start: int = 0) -> list[int]:
    """List the samples of an entry that the options ask for."""
    if options.sample is not None:
        indices: Sequence[int] = [options.sample] if options.sample < count else []
    elif options.pick is not None:
        indices = options.pick(entry, count)
    else:
        indices = range(count if options.limit is None else min(count, options.limit))
    return [index for index in indices if index >= start]


def run_unit(section: Section, entry: str, options: Options, start: int = 0) -> Iterator[int | Record]:
    """Run one entry: the number of each sample before it begins, its record after."""
    trials = section.trials(entry)
    contestant = CONTESTANTS[options.contestant]
    for index in chosen(options, entry, len(trials), start):
        yield index
        yield judge(trials[index], contestant, (section.name, entry, index))


def work(connection: Connection, options: Options) -> None:
    """Serve units until the parent hangs up (a worker process)."""
    from tests.conformance.sections import SECTIONS

    torch.set_num_threads(1)
    while True:
        try:
            unit: Unit = connection.recv()
        except EOFError:
            return
        with overrides(codegen=unit.codegen, whole="on"):
            for message in run_unit(SECTIONS[unit.section], unit.entry, options, unit.start):
                connection.send(message)
        connection.send(None)


@dataclass
class Worker:
    """One process, the unit it is at, and since when its present sample runs."""

    process: BaseProcess
    connection: Connection
    unit: Unit | None = None
    sample: int = 0
    since: float = field(default_factory=time.monotonic)
    units: int = 0

    @property
    def at_a_sample(self) -> bool:
        """Say whether it has begun with its unit."""
        return self.unit is not None and self.sample >= self.unit.start


class Sweep:
    """Runs units on several workers; a sample that kills or blocks its worker becomes a crash record."""

    def __init__(self, units: Sequence[Unit], options: Options, jobs: int) -> None:
        self.todo = deque(units)
        self.options = options
        self.workers = [self.new_worker() for _ in range(max(1, min(jobs, len(units))))]

    def new_worker(self) -> Worker:
        """Start a process; spawned, so that it shares no state with this one."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self.options), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours)

    def records(self) -> Iterator[Record]:
        """Give every record as it comes."""
        while self.todo or any(worker.unit for worker in self.workers):
            for place, worker in enumerate(self.workers):
                if worker.unit is None and self.todo:
                    self.workers[place] = self.assign(worker, self.todo.popleft())
            busy = {worker.connection: worker for worker in self.workers if worker.unit}
            for connection in multiprocessing.connection.wait(list(busy), timeout=PATIENCE):
                yield from self.read(busy[connection])  # type: ignore[index]
            for worker in busy.values():
                most = SECONDS_FOR_A_SAMPLE if worker.at_a_sample else SECONDS_TO_START
                if worker.unit and time.monotonic() - worker.since > most:
                    yield self.lost(worker, f"took longer than {most:.0f} s")
        for worker in self.workers:
            stop(worker)

    def assign(self, worker: Worker, unit: Unit) -> Worker:
        """Give a worker its next unit, in a fresh process where the old one has served long enough."""
        if worker.units >= UNITS_FOR_A_WORKER:
            stop(worker)
            worker = self.new_worker()
        worker.connection.send(unit)
        worker.unit, worker.sample, worker.since = unit, unit.start - 1, time.monotonic()
        worker.units += 1
        return worker

    def read(self, worker: Worker) -> Iterator[Record]:
        """Take one message of a worker."""
        try:
            message = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            yield self.lost(worker, f"the process died with exit code {worker.process.exitcode}")
            return
        worker.since = time.monotonic()
        if message is None:
            worker.unit = None
        elif isinstance(message, Record):
            yield message
        else:
            worker.sample = message

    def lost(self, worker: Worker, why: str) -> Record:
        """Replace a worker that died or hangs, go on after its sample, and record the crash."""
        unit = worker.unit
        assert unit is not None
        stop(worker)
        if worker.sample >= unit.start:
            self.todo.appendleft(replace(unit, start=worker.sample + 1))
        self.workers[self.workers.index(worker)] = self.new_worker()
        worker.unit = None
        sample = max(worker.sample, unit.start)
        return Record(unit.section, unit.entry, sample, Status.CRASH, why, codegen=unit.codegen)


def stop(worker: Worker) -> None:
    """End a worker process that this run started."""
    worker.connection.close()
    worker.process.kill()
    worker.process.join()
