"""Time one rival in a process of its own, which runs a turn whenever it is asked for one and is stopped in between.

Requests and answers are lines of JSON. What a rival prints goes to standard error, so that it cannot disturb them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import nn

from weft.api.step import Step
from weft.api.user_file import one_line
from weft.console.bench.harness import time_turn
from weft.console.bench.rivals import RIVALS, Run, eager_loop, in_double, parameters_of
from weft.console.subject import EAGER, SEED, Subject, load_subject
from weft.errors import ExecutionError
from weft.trace.interception.capture import tree_flatten, tree_map_only
from weft.train.processes.parent import end_with_parent

LAST_WORDS = 300
STEPS = 20  # of training, whose losses are kept


@dataclass(frozen=True, slots=True)
class RivalTask:
    """What one rival's process is started for; `shared` is a file of weights and inputs, `answers` where results go."""

    rival: str
    target: str
    sizes: tuple[str, ...]
    threads: int
    warmup: int
    shared: str
    answers: str


class RivalProcess:
    """Asks one rival's process for turns. Between them the process is stopped: a pool that spins cannot disturb."""

    def __init__(self, task: RivalTask, folder: Path) -> None:
        self.name = task.rival
        self._log = folder / f"{task.rival}.log"
        words = [
            sys.executable,
            "-m",
            "weft.console.bench.process",
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

    def turn(self, seconds: float) -> float:
        """Give the time of one call, from a turn of about so many seconds."""
        self._continue()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        found = float(self._answer()["seconds"])
        self._stop()
        return found

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


def serve(task: RivalTask, requests: TextIO, answers: TextIO) -> None:
    """Make ready, say so, and answer every line with the seconds of one call, until there are no more."""
    with ExitStack() as modes:
        try:
            run, told = _prepare(task, modes)
        except Exception as error:  # noqa: BLE001  # whatever a rival raises is why it does not compete, and is said
            _tell(answers, {"failed": one_line(error)})
            return
        _tell(answers, told)
        for seconds in requests:
            _tell(answers, {"seconds": time_turn(run, float(seconds))})


def _prepare(task: RivalTask, modes: ExitStack) -> tuple[Run, dict[str, Any]]:
    torch.set_num_threads(task.threads)
    subject = _with_shared(load_subject(task.target, task.sizes), task.shared)
    modes.enter_context(torch.set_grad_enabled(subject.trains))
    rival = next(each for each in RIVALS if each.name == task.rival)
    # Every answer starts from the same random numbers, also the one in float64: a model may draw some.
    if task.rival == EAGER:
        torch.manual_seed(SEED)
        np.savez(task.answers + ".double", *_in_double(subject))
    torch.manual_seed(SEED)
    start = time.perf_counter()
    run = rival.prepare(subject.thing, subject.inputs, task.threads)
    result = run()
    first_call = time.perf_counter() - start
    np.savez(task.answers, *arrays_of((result, _changed(subject))))
    steps = (result, *(run() for _ in range(STEPS - 1))) if subject.trains else ()
    losses = [sum(float(array.sum()) for array in arrays_of(found)) for found in steps]
    for _ in range(task.warmup):
        run()
    return run, {"first_call": first_call, "losses": losses}


def _changed(subject: Subject) -> list[torch.Tensor]:
    """What a call changes, as far as it belongs to the answer: the parameters, where it trains."""
    return parameters_of(subject.thing) if isinstance(subject.thing, Step) else []


def _with_shared(subject: Subject, path: str) -> Subject:
    """Take the weights and inputs that every rival gets, where the file makes them at random."""
    shared = torch.load(path, weights_only=True)
    if subject.module is not None:
        subject.module.load_state_dict(shared["state"])
    # In memory as PyTorch gives it out: that of a file just read cannot be resized, and is not what models are given.
    inputs = tree_map_only(torch.Tensor, torch.clone, shared["inputs"])
    return Subject(subject.name, subject.thing, tuple(inputs), subject.caller)


def _in_double(subject: Subject) -> list[Any]:
    """The answer in float64, or nothing where the model cannot be computed so."""
    thing: Callable[..., Any] = subject.thing
    inputs = tree_map_only(torch.Tensor, _doubled, subject.inputs)
    try:
        if isinstance(thing, Step):
            double = in_double(thing)
            return arrays_of((eager_loop(double, inputs)(), parameters_of(double)))
        thing = copy.deepcopy(thing).double() if isinstance(thing, nn.Module) else thing
        return arrays_of(thing(*inputs))
    except (RuntimeError, TypeError, ValueError):
        return []


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def arrays_of(result: Any) -> list[Any]:
    """Give the tensors and arrays of a result, in order, as float64."""
    leaves = (leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor | np.ndarray))
    tensors = (torch.as_tensor(leaf) for leaf in leaves)
    return [(tensor.resolve_conj() if tensor.is_complex() else tensor.double()).numpy() for tensor in tensors]


def _tell(answers: TextIO, told: dict[str, Any]) -> None:
    print(json.dumps(told), file=answers, flush=True)


def main() -> None:
    """Serve the task that the command line holds as JSON."""
    end_with_parent(int(sys.argv[2]))  # even while it is stopped: nobody would ever continue it
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # deprecations of exporters are no business of a table of times
    given = json.loads(sys.argv[1])
    serve(RivalTask(**{**given, "sizes": tuple(given["sizes"])}), sys.stdin, answers)


if __name__ == "__main__":
    main()
