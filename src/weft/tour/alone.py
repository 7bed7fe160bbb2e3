"""The name of a stop -> the stop run in a process of its own.

Stops measure times. What one leaves behind (threads that wait, memory that is mapped) would change what the next one
measures: a training step in plain PyTorch took three times as long after a stop that had queued large products.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from weft.document import Picture
from weft.tour.stop import Claim
from weft.tour.visit import ALL_STOPS, Visit, visit
from weft.train.processes.parent import end_with_parent

LAST_WORDS = 600


def visit_alone(name: str) -> Visit:
    """Run a stop in a new process; one that ends without an answer is a claim that does not hold."""
    stop = next(stop for stop in ALL_STOPS if stop.name == name)
    words = [sys.executable, "-m", "weft.tour.alone", name, str(os.getpid())]
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
