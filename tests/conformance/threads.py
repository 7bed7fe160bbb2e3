"""Many threads on one hybridized module -> right answers, one trace a signature, no deadlock."""

import faulthandler
import logging
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from tests.conformance.cases import Contestant, Record, Status
from tests.conformance.compare import same_bits, same_rounding

from weft.config import config

SHAPES = ((1, 8), (2, 8), (3, 8), (7, 8), (2, 3, 8), (0, 8))
DEADLOCK_SECONDS = 50.0
NAME = "tests.conformance.threads"


class Counting(torch.nn.Module):
    """A small network that notes each time Python runs its forward: under Weft, once a signature."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the network."""
        logging.getLogger(NAME).info("ran with %s %s", tuple(x.shape), torch.is_grad_enabled())
        return self.second(torch.relu(self.first(x))) + x.sum()


class Runs(logging.Handler):
    """Counts the runs of Python by shape and gradient mode; a log is written as Python runs, and not by programs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[tuple[int, ...], bool]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one run."""
        assert isinstance(record.args, tuple)
        self.counts[record.args] += 1  # type: ignore[index]  # one at a time: a handler has a lock


RUNS = Runs()
logging.getLogger(NAME).addHandler(RUNS)
logging.getLogger(NAME).setLevel(logging.INFO)
logging.getLogger(NAME).propagate = False


@dataclass
class Findings:
    """What a stress run found."""

    calls: int = 0
    wrong: list[str] = field(default_factory=list)
    runs: dict[tuple[tuple[int, ...], bool], int] = field(default_factory=dict)
    unfinished: int = 0

    @property
    def traced_again(self) -> list[str]:
        """Name the signatures that Python ran more than once for."""
        return [f"{key} ran {count} times" for key, count in self.runs.items() if count > 1]


def stress(contestant: Contestant, *, threads: int, calls: int, seconds: float = DEADLOCK_SECONDS) -> Findings:
    """Call one module from many threads at once, all starting together, with shapes in each thread's own order."""
    module = Counting().eval()
    inputs = [torch.randn(shape) for shape in SHAPES]
    answers = {grad: answer_all(module, inputs, grad=grad) for grad in (True, False)}
    RUNS.counts.clear()
    wrapped = contestant(module)
    findings = Findings()
    barrier = threading.Barrier(threads)
    same = same_rounding if config().codegen == "native" else same_bits

    def caller(number: int) -> None:
        order = random.Random(number)
        barrier.wait(seconds)
        for _ in range(calls // threads):
            place, grad = order.randrange(len(inputs)), order.random() < 0.5
            try:
                with torch.set_grad_enabled(grad):
                    result = wrapped(inputs[place])
            except Exception as error:  # noqa: BLE001  an exception in a thread is a finding
                findings.wrong.append(f"{SHAPES[place]}: {type(error).__name__}: {error}")
                return
            if not same(answers[grad][place], result) or result.requires_grad is not grad:
                findings.wrong.append(f"{SHAPES[place]}, gradients {grad}: another answer than eager's")
                return

    faulthandler.dump_traceback_later(seconds)
    callers = [threading.Thread(target=caller, args=(number,), daemon=True) for number in range(threads)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(seconds)
    faulthandler.cancel_dump_traceback_later()
    findings.calls = calls // threads * threads
    findings.runs = dict(RUNS.counts)
    findings.unfinished = sum(thread.is_alive() for thread in callers)
    return findings


def answer_all(module: torch.nn.Module, inputs: Sequence[torch.Tensor], *, grad: bool) -> list[torch.Tensor]:
    """Give eager's answers."""
    with torch.set_grad_enabled(grad):
        return [module(x).detach() for x in inputs]


def stress_record(contestant: Contestant, calls: int) -> Record:
    """Run the stress as one row of the report."""
    found = stress(contestant, threads=8, calls=calls, seconds=600.0)
    problems = [*found.wrong[:3], *found.traced_again]
    if found.unfinished:
        problems = [f"{found.unfinished} threads never came back"]
    failed = Status.CRASH if found.unfinished else Status.WRONG
    status = failed if problems else Status.EQUAL
    return Record("threads", "one module", 0, status, "; ".join(problems), codegen=config().codegen)
