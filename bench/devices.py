"""`python -m bench.devices [lenet|resnet18] [SECONDS]`: a training step on two virtual devices beside others.

The losses are compared first; then the contestants take turns, and each gets the median of its times.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import weft
from weft.devices import cores

SIZES: dict[str, tuple[Callable[[], torch.nn.Module], int]] = {
    "lenet": (weft.models.LeNet, 256),
    "resnet18": (weft.models.resnet18, 64),
}
ALIKE = 1e-3
WARM_UP = 3
DEVICES = ["cpu:0", "cpu:1"]
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def parts(name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Make the same network and optimizer for each contestant."""
    torch.manual_seed(0)
    net = SIZES[name][0]()
    return net, torch.optim.SGD(net.parameters(), 0.01)


def eager(name: str) -> Step:
    """Plain PyTorch on all threads."""
    net, optimizer = parts(name)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def trainer(name: str, **options: Any) -> Step:
    """Weft's trainer on two virtual devices."""
    net, optimizer = parts(name)
    return weft.Trainer(net, optimizer, functional.cross_entropy, DEVICES, **options).step


def whole(name: str, lanes: int) -> Step:
    """Weft's whole step on so many lanes."""
    net, optimizer = parts(name)
    step = weft.step(net, functional.cross_entropy, optimizer)

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with cores(lanes):
            loss: torch.Tensor = step(x, y)
            return loss

    return run


CONTESTANTS: dict[str, Callable[[str], Step]] = {
    "Trainer, whole steps": lambda name: trainer(name, hybridize=True),
    "weft.step, two lanes": lambda name: whole(name, 2),
    "weft.step, one lane": lambda name: whole(name, 1),
    "Trainer, eager replicas": trainer,
    "eager": eager,
}


def main(name: str, seconds: float) -> None:
    """Compare the losses of the first steps, then measure in turn."""
    size = SIZES[name][1]
    x, y = torch.rand(size, 1, 28, 28), torch.randint(10, (size,))
    steps = {title: make(name) for title, make in CONTESTANTS.items()}
    losses = {title: [float(step(x, y)) for _ in range(WARM_UP)] for title, step in steps.items()}
    for title, found in losses.items():
        if name == "lenet" and max(abs(a - b) for a, b in zip(found, losses["eager"], strict=True)) > ALIKE:
            raise SystemExit(f"{title} trains otherwise than eager: {found}, {losses['eager']}")
    times: dict[str, list[float]] = {title: [] for title in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for title, step in steps.items():
            start = time.perf_counter()
            step(x, y)
            times[title].append(time.perf_counter() - start)
    medians = {title: statistics.median(found) for title, found in times.items()}
    for title, median in medians.items():
        ratio = medians["weft.step, two lanes"] / median
        print(f"{name} {size}: {title:26} {median * 1e3:8.2f} ms  {ratio:.2f} of weft.step on two lanes")


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0] if words else "lenet", float(words[1]) if len(words) > 1 else 10.0)
