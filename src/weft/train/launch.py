"""Start the processes of a training run, watch them, and leave none behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not said to be

from weft.devices import cpu_count
from weft.errors import ExecutionError, UsageError, WeftError
from weft.train.history import History
from weft.train.processes.peers import PATIENCE, join
from weft.train.processes.rank_watch import NOBODY, RankFailure, own_part, publish, read_failure, signs
from weft.train.training_run import RunOptions, load_run

LOOK = 0.05  # seconds between two looks at the processes
GRACE = 3.0  # seconds in which the other processes end by themselves when one has failed
RESULT = "history"
HOST = "127.0.0.1"
FAILED, INTERRUPTED = 4, 130


@dataclass(frozen=True)
class LaunchOptions:
    """What every process is told to do."""

    target: str
    devices: Any = "all"
    epochs: int = 1
    resume: str | None = None
    checkpoints: str | None = None
    patience: float = PATIENCE
    values: dict[str, Any] | None = None


def train(target: str, *, processes: int = 1, **order: Any) -> History:
    """Train what a word names, `file.py:name` or `examples.lenet`, in this process or in several; gives the history.

    Keywords: `devices`, `epochs`, `resume` ("auto" or None), `checkpoints` (a folder), `patience`, and in `values` what
    is given to the run itself.
    """
    if processes < 1:
        raise UsageError(f"processes is {processes}")
    told = LaunchOptions(target, **order)
    if told.resume is not None and told.checkpoints is None:
        told = LaunchOptions(**{**asdict(told), "checkpoints": "checkpoints"})
    return run_here(told) if processes == 1 else _Processes(told, processes).run()


def run_here(told: LaunchOptions) -> History:
    """Train in this process."""
    run = load_run(told.target, RunOptions(told.devices, told.checkpoints, told.values or {}))
    if run.trainer.peers is not None:
        run.trainer.peers.patience = told.patience
    return run.trainer.fit(run.train, run.test, epochs=told.epochs, resume=told.resume)


class _Processes:
    """The processes of one run, one a rank; this process holds their store, so that it outlives any of them."""

    def __init__(self, told: LaunchOptions, count: int) -> None:
        self.count = count
        # Here and not in rank 0: when a rank is killed, the others must still be able to say and read which.
        self.store = TCPStore(HOST, 0, None, True, timeout=timedelta(seconds=300), wait_for_workers=False)
        self.own = own_part(self.store)
        text = json.dumps(asdict(told))
        with _ctrl_c_held_back():
            self.processes = [
                subprocess.Popen([*_command(), str(rank), str(count), str(self.store.port), text], stdout=_output())
                for rank in range(count)
            ]

    def run(self) -> History:
        """Wait for all; raise the error of the first that fails, after the others have ended."""
        former = signal.signal(signal.SIGTERM, _terminated) if _in_main_thread() else None
        try:
            while any(process.poll() is None for process in self.processes):
                failed = [rank for rank, process in enumerate(self.processes) if process.poll()]
                if failed:
                    raise self._failure(failed[0])
                time.sleep(LOOK)
            failed = [rank for rank, process in enumerate(self.processes) if process.returncode]
            if failed:
                raise self._failure(failed[0])
            return History(json.loads(self.own.get(RESULT)))
        finally:
            self._end_all()
            if former is not None:
                signal.signal(signal.SIGTERM, former)

    def _failure(self, rank: int) -> ExecutionError:
        """Tell the others which rank has failed, wait for them, and say it here too."""
        found = read_failure(self.own) or publish(self.own, self._described(rank))
        limit = time.monotonic() + GRACE
        while time.monotonic() < limit and any(process.poll() is None for process in self.processes):
            time.sleep(LOOK)
        return ExecutionError(
            f"rank {found.rank} of {self.count} failed in step {found.step}: training has ended",
            where=found.line,
            why=found.reason,
            fix='start again with --resume auto (resume="auto") to go on from the newest checkpoint',
        )

    def _described(self, rank: int) -> RankFailure:
        code = self.processes[rank].returncode
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        sign = signs(self.own, self.count).get(rank)
        reason = f"process {self.processes[rank].pid} {ended}"
        return RankFailure(rank, sign.step if sign else 0, reason, sign.line if sign else None)

    def _end_all(self) -> None:
        """Leave no process behind: first ask, then make them."""
        if any(process.poll() is None for process in self.processes):
            publish(self.own, RankFailure(NOBODY, 0, "the process that started this one ends"))
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            alive = [process for process in self.processes if process.poll() is None]
            for process in alive:
                process.send_signal(number)
            limit = time.monotonic() + seconds
            while time.monotonic() < limit and any(process.poll() is None for process in alive):
                time.sleep(LOOK)


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Start processes that see Ctrl-C when they can answer to it (in main), not while they still import."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _output() -> int | None:
    """Say where the processes print: where this one prints now, if that is a file."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):  # a stream in memory has none
        return None


def _command() -> Sequence[str]:
    return [sys.executable, "-m", "weft.train.processes.parent", str(os.getpid()), "weft.train.launch"]


def _terminated(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def main(words: Sequence[str]) -> int:
    """Train as one rank; an error of Weft is printed as it is, any other one with its traceback."""
    rank, world, port = (int(word) for word in words[:3])
    told = LaunchOptions(**json.loads(words[3]))
    torch.set_num_threads(max(1, cpu_count() // world))
    try:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back until now, see _ctrl_c_held_back
        store = TCPStore(HOST, port, None, False, timeout=timedelta(seconds=300))
        peers = join(lambda: store, rank, world)
        assert peers is not None, "a run of one process is not started here"
        with peers.guard():
            history = run_here(told)
    except WeftError as error:
        print(f"weft: rank {rank}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - nobody else would say it
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    if rank == 0:
        own_part(store).set(RESULT, json.dumps(list(history)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
