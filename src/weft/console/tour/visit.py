"""Run a stop of the tour, in this process or in one of its own, with its output and its claims.

Stops measure times. What one leaves behind (threads that wait, memory that is mapped) would change what the next one
measures: a training step in plain PyTorch took three times as long after a stop that had queued large products.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import torch

import weft
from weft.console.tour.gluon import GLUON
from weft.console.tour.parallel import PARALLEL, QUEUED
from weft.console.tour.programming import PROGRAMMING
from weft.console.tour.stop import Claim, Stop
from weft.console.tour.training import TRAINING
from weft.document.blocks import Picture
from weft.train.processes.parent import end_with_parent

ALL_STOPS = (*PROGRAMMING, *QUEUED, *PARALLEL, *TRAINING, *GLUON)
SEED = 0
LAST_WORDS = 600


@dataclass(frozen=True, slots=True)
class Visit:
    """What a stop gave here."""

    name: str
    code: str
    output: str
    claims: tuple[Claim, ...]
    picture: Picture | None = None

    @property
    def holds(self) -> bool:
        """Tell whether every claim of the stop holds."""
        return all(claim.holds for claim in self.claims)


def stops_here(dialect: str = "torch") -> tuple[Stop, ...]:
    """List the stops of a dialect whose features this Weft has."""
    return tuple(stop for stop in ALL_STOPS if stop.dialect == dialect and set(stop.needs) <= set(weft.__all__))


def visit(stop: Stop) -> Visit:
    """Run a stop's code, and check its claims; a stop that fails is a claim that does not hold."""
    filename = f"<tour {stop.name}>"
    # Without a time of change an entry is never looked up on disk.
    linecache.cache[filename] = (len(stop.code), None, stop.code.splitlines(keepends=True), filename)
    names: dict[str, Any] = {"__name__": f"weft_tour_{stop.name}"}
    printed = io.StringIO()
    drawn = None
    torch.manual_seed(SEED)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(stop.code, filename, "exec", dont_inherit=True), names)
        claims = stop.check(names, printed.getvalue())
        drawn = stop.draw(names) if stop.draw is not None else None
    except Exception as error:  # noqa: BLE001  # a self-test tells what failed, and goes on
        printed.write("".join(traceback.format_exception(error)[-3:]))
        claims = (Claim("runs", "-", type(error).__name__, holds=False),)
    return Visit(stop.name, stop.code, printed.getvalue().rstrip(), claims, drawn)


def visit_alone(name: str) -> Visit:
    """Run a stop in a new process; one that ends without an answer is a claim that does not hold."""
    stop = next(stop for stop in ALL_STOPS if stop.name == name)
    words = [sys.executable, "-m", "weft.console.tour.visit", name, str(os.getpid())]
    found = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", check=False)
    if found.returncode != 0:
        claims = (Claim("runs", "-", f"exit {found.returncode}", holds=False),)
        return Visit(name, stop.code, found.stderr.strip()[-LAST_WORDS:], claims)
    told = json.loads(found.stdout)
    picture = None if told["picture"] is None else Picture(**told["picture"])
    return Visit(name, stop.code, told["output"], tuple(map(_claim, told["claims"])), picture)


def _claim(told: dict[str, Any]) -> Claim:
    times = told.pop("times")
    return Claim(**told, times=None if times is None else (times[0], times[1]))


def main() -> None:
    """Run the stop that the command line names, and tell what it gave as JSON."""
    end_with_parent(int(sys.argv[2]))
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print by themselves is no answer
    stop = next(stop for stop in ALL_STOPS if stop.name == sys.argv[1])
    with answer:
        json.dump(asdict(visit(stop)), answer)


if __name__ == "__main__":
    main()
