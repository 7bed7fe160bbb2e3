"""Stop at work that is queued while Python goes on, and at independent work side by side."""

from __future__ import annotations

import torch

from weft.console.tour.stop import Claim, Names, Stop, before_and_after, change_text
from weft.devices import cpu_count
from weft.document.blocks import Picture
from weft.document.charts import Axes, curve_text, curves
from weft.programs.picture import timeline_picture

MOST_QUEUED = 0.5  # of the time until it is finished
CLOSE_SUMS = 1e-4
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
CALLS = 20
CLOSE = 1e-5
# With one core nothing can overlap: two queues on it then cost changes of threads, and may not cost more than this.
LEAST_ON_ONE_CORE = 0.67

PARALLEL_TOWERS = """\
import torch
from torch import nn
import weft

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
            for tower in range(8))

    def forward(self, x):  # eight pieces that know nothing of each other
        return torch.stack([tower(x) for tower in self.towers]).sum(0)

net, x = Towers(), torch.randn(32, 128)
with torch.no_grad():
    imperative, eager = net(x), net.forward
    weft.hybridize(net)
    hybrid = net(x)
    program = weft.program(net, x)
lanes = [max(1, len(region.lanes)) for region in program.plan.regions]
print("lanes:", lanes)"""

OVERLAP = """\
import time
import torch
import weft

@weft.hybridize
def compute(x):
    for layer in range(3):
        x = (x * 1.1).tanh()
    return x

@weft.hybridize
def copy(y):
    return y.clone()

x = torch.rand(1000, 1000)

def run(overlap, count=20):
    copies = []
    start = time.perf_counter()
    for turn in range(count):
        with weft.on("cpu:0"):  # or "cuda:0"
            y = weft.spawn(compute, x)
        if not overlap:
            weft.wait(y)
        with weft.on("cpu:1"):
            copies.append(weft.spawn(copy, y))
        if not overlap:
            weft.wait(copies[-1])
    copies = weft.wait(copies)  # what is read is there
    return copies, time.perf_counter() - start

with torch.no_grad():
    run(True)
    expected = compute(x)
    copies, seconds = run(True)
right = all(torch.equal(y, expected) for y in copies)
print(f"{seconds:.4f} s, right: {right}")"""


def _check_memory(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    without, within = max(names["without_limit"]), max(names["with_limit"])
    difference = abs(names["bounded"] - names["free"]) / abs(names["free"])
    return (
        Claim("memory_grows", "+196.608 MB", f"+{without / 1e6:.1f} MB", without > LIMIT),
        Claim("memory_bounded", "+0.256 MB", f"+{within / 1e6:.1f} MB", within <= LIMIT),
        Claim("memory_same", "-", f"{difference:.1e}", difference < CLOSE_SUMS),
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
        Claim("async_same", "-", f"{difference:.1e}", difference < CLOSE_SUMS),
    )


QUEUED = (
    Stop("asynchronous", ASYNCHRONOUS, _check_asynchronous, ("lazy",)),
    Stop("memory", MEMORY, _check_memory, ("lazy", "limit", "engine_statistics"), _draw_memory),
)


def _check_towers(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    net, eager, x = names["net"], names["eager"], names["x"]
    difference = (names["hybrid"] - names["imperative"]).abs().max().item()
    cores, most = cpu_count(), max(names["lanes"])
    with torch.no_grad():
        found = before_and_after(lambda: eager(x), lambda: net(x), CALLS)
    return (
        Claim("parallel_lanes", "2 GPUs", f"{most} of {cores}", most > 1 or cores == 1),
        Claim("parallel_same", "-", f"{difference:.1e}", difference < CLOSE),
        Claim(
            "parallel_faster",
            "0.2989 s + 0.3518 s → 0.5076 s, × 1.28",
            change_text(*found),
            found[2] > 1,
            found[:2],
        ),
    )


def _draw_towers(names: Names) -> Picture:
    return timeline_picture(names["program"].timeline(), "")  # the tour has a caption in its language


def _check_overlap(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    run, right = names["run"], names["right"]
    least = 1.0 if cpu_count() > 1 else LEAST_ON_ONE_CORE
    with torch.no_grad():
        found = before_and_after(lambda: run(False), lambda: run(True), 1, least)
    return (
        Claim("overlap_right", "PyTorch: garbage", str(right), bool(right)),
        Claim(
            "overlap_faster",
            "1.7425 s → 1.2807 s, × 1.36; PyTorch: × 0.71",
            change_text(*found),
            found[2] > least,
            found[:2],
        ),
    )


PARALLEL = (
    Stop("parallel", PARALLEL_TOWERS, _check_towers, ("hybridize", "program"), _draw_towers),
    Stop("overlap", OVERLAP, _check_overlap, ("hybridize", "spawn", "on", "wait")),
)
