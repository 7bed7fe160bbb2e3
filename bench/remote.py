"""A contestant's process as seen from the benchmark: started, asked one thing at a time, stopped in between."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.contestants import Contestant
from bench.job import CannotRunError
from bench.worker import Prepared, Task
from weft.console.bench.harness import DroppedOutError

ROOT = Path(__file__).resolve().parent.parent
SLOWEST_TURN = 120.0  # seconds more than asked for: then a contestant counts as hanging


class Remote:
    """One worker process."""

    def __init__(self, contestant: Contestant, task: Task, folder: Path) -> None:
        self.name = contestant.name
        self.log = folder / "log.txt"
        folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        threads = contestant.threads or task.threads
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", str(theirs.fileno()), str(threads)],
                cwd=ROOT,
                env={**os.environ, **environment(folder, threads), **contestant.environment},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.connection.send(Task(task.contestant, task.workload, threads, task.first_setting_only))

    def prepare(self, patience: float) -> Prepared:
        """Set the workload up; CannotRunError says why it cannot."""
        succeeded, result = self._ask(patience, "prepare")
        if not succeeded:
            raise CannotRunError(result)
        prepared: Prepared = result
        return prepared

    def turn(self, seconds: float) -> float:
        """Let the process run, time its call, and stop it again."""
        try:
            succeeded, result = self._ask(seconds + SLOWEST_TURN, "turn", seconds)
        except CannotRunError as error:
            raise DroppedOutError(str(error)) from error
        if not succeeded:
            raise DroppedOutError(result)
        each: float = result
        return each

    def _ask(self, patience: float, *request: Any) -> tuple[bool, Any]:
        self._signal(signal.SIGCONT)
        try:
            self.connection.send(request)
            if not self.connection.poll(patience):
                raise CannotRunError(f"no answer within {patience:.0f} s")
            answer: tuple[bool, Any] = self.connection.recv()
            return answer
        except (EOFError, ConnectionError) as error:
            raise CannotRunError(f"its process ended ({self._ending()}): see {self.log}") from error
        finally:
            self._signal(signal.SIGSTOP)

    def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout=5)
            return signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return "unknown"

    def _signal(self, number: signal.Signals) -> None:
        # The whole session: compilers and pools that a contestant started stop with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End the process and all it started."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.connection.close()


def environment(folder: Path, threads: int) -> dict[str, str]:
    """Give each worker caches of its own, empty at first, and everyone's variable for the number of threads."""
    return {
        "WEFT_CACHE_DIR": str(folder / "weft"),
        "WEFT_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "NPROC": str(threads),
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
