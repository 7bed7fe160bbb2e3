"""Stops about work that is queued while Python goes on."""

from __future__ import annotations

from weft.tour.stop import Claim, Names, Stop

MOST_QUEUED = 0.5  # of the time until it is finished
CLOSE = 1e-4

ASYNCHRONOUS = """\
import time
import torch
import weft

x = torch.rand(2000, 2000)
imperative = (x @ x).sum().item()

def run():
    start = time.perf_counter()
    with weft.lazy():
        y = (x @ x).sum()
        queued = time.perf_counter() - start
        value = y.item()  # looking at a value waits
        finished = time.perf_counter() - start
    return queued, finished, value

run()  # the first time is for learning what is in it
queued, finished, value = min(run() for turn in range(3))
print(f"queued after {queued:.4f} s, finished after {finished:.4f} s")"""


def _check_asynchronous(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    queued, finished = names["queued"], names["finished"]
    difference = abs(names["value"] - names["imperative"]) / abs(names["imperative"])
    return (
        Claim(
            "async_queued", "0.0006 s, 0.1748 s", f"{queued:.4f} s, {finished:.4f} s", queued < MOST_QUEUED * finished
        ),
        Claim("async_same", "-", f"{difference:.1e}", difference < CLOSE),
    )


QUEUED = (Stop("asynchronous", ASYNCHRONOUS, _check_asynchronous, ("lazy",)),)
