"""Stops about work that is queued while Python goes on."""

from __future__ import annotations

from weft.console.tour.stop import Claim, Names, Stop
from weft.document.blocks import Picture
from weft.document.charts import Axes, curve_text, curves

MOST_QUEUED = 0.5  # of the time until it is finished
CLOSE = 1e-4
LIMIT = 8_000_000  # as in the code below

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


MEMORY = """\
import torch
from torch import nn
import weft

net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

def predict():
    losses, waiting = [], []
    with torch.no_grad(), weft.lazy():
        for number in range(100):
            x = torch.full((1024, 512), number / 100)
            losses.append(net(x).mean())
            waiting.append(weft.engine_statistics().bytes_in_flight)
        return sum(map(float, losses)), waiting

free, without_limit = predict()
weft.limit(bytes=8_000_000)  # past it, whoever queues more waits
bounded, with_limit = predict()
print(f"{max(without_limit) / 1e6:.0f} MB and {max(with_limit) / 1e6:.0f} MB")"""


def _check_memory(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    without, within = max(names["without_limit"]), max(names["with_limit"])
    difference = abs(names["bounded"] - names["free"]) / abs(names["free"])
    return (
        Claim("memory_grows", "+196.608 MB", f"+{without / 1e6:.1f} MB", without > LIMIT),
        Claim("memory_bounded", "+0.256 MB", f"+{within / 1e6:.1f} MB", within <= LIMIT),
        Claim("memory_same", "-", f"{difference:.1e}", difference < CLOSE),
    )


def _draw_memory(names: Names) -> Picture:
    """Draw the bytes that wait, batch after batch."""
    without, within = names["without_limit"], names["with_limit"]
    axes = Axes(lambda batch: f"{batch + 1:.0f}", lambda size: f"{size / 1e6:.0f} MB")
    series = {"without_limit": list(enumerate(without)), "with_limit": list(enumerate(within))}
    most = float(max(without))
    lines = (f"{name:<14} {curve_text([size for _, size in curve], 50, most)}" for name, curve in series.items())
    return Picture(curves(series, axes), "\n".join(lines))


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


QUEUED = (
    Stop("asynchronous", ASYNCHRONOUS, _check_asynchronous, ("lazy",)),
    Stop("memory", MEMORY, _check_memory, ("lazy", "limit", "engine_statistics"), _draw_memory),
)
