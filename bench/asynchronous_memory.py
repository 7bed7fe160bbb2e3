"""A training loop that never waits -> how much memory it takes: `python -m bench.asynchronous_memory WAY [MB]`.

The chapter's loop (CHAPTER.md items 38 and 39): batches of 1024 x 512, a perceptron 2048-512-1, rate 0.005. A process
measures one way, as memory that was once taken is rarely given back. Its allocator is told to give back each tensor at
once: what it keeps of its own accord differs by 60 MB from run to run, whatever the limit.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

import weft

BATCHES = 100
WARM_UP = 10, 3  # so often as many batches: programs are then compiled, and the allocators have what they keep
WAYS = ("eager", "lazily", "limited")
MEGABYTE = 1 << 20
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # of the C library: larger blocks are pages of their own


def resident(name: str) -> int:
    """A size of this process in bytes: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {name}")


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The chapter's data, made batch by batch."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(1024, 512, generator=generator), torch.randn(1024, 1, generator=generator)


def train(net: nn.Module, count: int) -> torch.Tensor:
    """The loop; gives the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), 0.005)
    loss = torch.zeros(())
    for x, y in batches(count):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
    return loss


def measure(way: str, megabytes: int) -> None:
    """Print the last loss and by how much the peak rose over what was there after the warm-up."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 1))
    block = contextlib.nullcontext if way == "eager" else weft.lazy
    with block():
        if way == "limited":
            weft.limit(bytes=megabytes * MEGABYTE)
        times, count = WARM_UP
        for _ in range(times):
            weft.wait(train(net, count))
            weft.waitall()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
        loss = weft.wait(train(net, BATCHES))
        weft.waitall()
    print(f"{loss.item():.6f} {(resident('VmHWM') - before) / MEGABYTE:.1f}")


def growths(ways: Sequence[str], megabytes: int) -> dict[str, float]:
    """By how many MB the peak of each way rose, each in a process of its own; the last losses are compared."""
    found: dict[str, tuple[float, float]] = {}
    for way in ways:
        command = [sys.executable, "-m", "bench.asynchronous_memory", way, str(megabytes)]
        run = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **GIVE_BACK})
        loss, growth = run.stdout.split()
        found[way] = float(loss), float(growth)
    right = found["eager"][0]
    for way, (loss, _) in found.items():
        if abs(loss - right) > 1e-3 * abs(right):
            raise SystemExit(f"{way}: the last loss is {loss}, eager's is {right}")
    return {way: growth for way, (_, growth) in found.items()}


def bounded_memory(megabytes: int = 64) -> str:
    """Items 38 and 39: the growth of each way beside the chapter's +197 MB without a wait."""
    found = growths(WAYS, megabytes)
    grown = ", ".join(f"{way} {growth:+.1f} MB" for way, growth in found.items())
    return (
        f"{BATCHES} batches without a wait: {grown}; limited beyond eager {found['limited'] - found['eager']:+.1f} MB "
        f"(limit {megabytes} MB; the chapter +197 MB)"
    )


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 64)
