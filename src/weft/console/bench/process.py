"""A task -> the process that serves it, stopped while it is not its turn."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from weft.console.bench.settings import Task
from weft.errors import ExecutionError

LAST_WORDS = 300


class RivalProcess:
    """Asks one rival's process for turns. Between them the process is stopped: a pool that spins cannot disturb."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.name = task.rival
        self._log = folder / f"{task.rival}.log"
        words = [
            sys.executable,
            "-m",
            "weft.console.bench.worker",
            json.dumps(dataclasses.asdict(task)),
            str(os.getpid()),
        ]
        # The settings of a process that is timed are its own: threads for Weft and for what reads OpenMP's.
        own = {"WEFT_THREADS": str(task.threads), "OMP_NUM_THREADS": str(task.threads), "PYTHONUNBUFFERED": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["env", *(f"{name}={value}" for name, value in own.items()), *words] if os.name == "posix" else words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a group of its own: what a rival starts is stopped and ended with it
            )

    def prepared(self) -> dict[str, Any]:
        """Wait until the rival is ready, and stop it."""
        told = self._answer()
        self._stop()
        return told

    def turn(self) -> float:
        """Give the seconds of one call, from one turn."""
        self._continue()
        assert self._process.stdin is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        seconds = float(self._answer()["seconds"])
        self._stop()
        return seconds

    def close(self) -> None:
        """End the process."""
        self._signal("SIGKILL")
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            # It ended on its own account: what it said last is all there is to know.
            words = self._log.read_text(encoding="utf-8", errors="replace").strip()[-LAST_WORDS:]
            raise ExecutionError(f"the process of {self.name} ended (status {self._process.wait()})", why=words or None)
        told: dict[str, Any] = json.loads(line)
        return told

    def _stop(self) -> None:
        self._signal("SIGSTOP")

    def _continue(self) -> None:
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        """Send a signal to all of the group, where the system knows such signals; one that has ended is no matter."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, getattr(signal, name))
