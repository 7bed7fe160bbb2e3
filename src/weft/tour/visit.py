"""A stop -> what it gave here: run in this process, with its output and its claims."""

from __future__ import annotations

import contextlib
import io
import linecache
import traceback
from dataclasses import dataclass
from typing import Any

import torch

import weft
from weft.document import Picture
from weft.tour.asynchronous import QUEUED
from weft.tour.parallel import PARALLEL
from weft.tour.programming import PROGRAMMING
from weft.tour.stop import Claim, Stop
from weft.tour.training import TRAINING

ALL_STOPS = (*PROGRAMMING, *QUEUED, *PARALLEL, *TRAINING)
SEED = 0


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


def stops_here() -> tuple[Stop, ...]:
    """List the stops whose features this Weft has."""
    return tuple(stop for stop in ALL_STOPS if set(stop.needs) <= set(weft.__all__))


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
