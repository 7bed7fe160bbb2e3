"""`python -m bench.devices [lenet|resnet18] [SECONDS]`: a training step on two virtual devices beside others.

The losses are compared first; then the contestants take turns, and each gets the median of its times.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch.nn import functional

import weft
from bench.devices_peers import averaged_replicas, ddp
from weft.console.bench.harness import ratios
from weft.devices import cores

SIZES: dict[str, tuple[Callable[[], torch.nn.Module], int]] = {
    "lenet": (weft.models.LeNet, 256),
    "resnet18": (weft.models.resnet18, 64),
}
ALIKE = 1e-3
WARM_UP = 3
STEPS_OF_A_TURN = 5
DEVICES = ["cpu:0", "cpu:1"]
TRAINER, TWO_LANES, ONE_LANE = "Trainer, whole steps", "weft.step, two lanes", "weft.step, one lane"
BARS = {TWO_LANES: 0.97, ONE_LANE: 1.85}  # their time over the trainer's, at least
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


CONTESTANTS: dict[str, Callable[[str], AbstractContextManager[Step]]] = {
    TRAINER: lambda name: nullcontext(trainer(name, hybridize=True)),
    TWO_LANES: lambda name: nullcontext(whole(name, 2)),
    ONE_LANE: lambda name: nullcontext(whole(name, 1)),
    "Trainer, eager replicas": lambda name: nullcontext(trainer(name)),
    "DDP, two Gloo processes": lambda name: ddp(parts, name),
    "replicas, averaged": lambda name: averaged_replicas(parts, name),
    "eager": lambda name: nullcontext(eager(name)),
}


def main(name: str, seconds: float) -> None:
    """Compare the losses of the first steps, then measure in turn."""
    size = SIZES[name][1]
    x, y = torch.rand(size, 1, 28, 28), torch.randint(10, (size,))
    with ExitStack() as stack:
        steps = {title: stack.enter_context(make(name)) for title, make in CONTESTANTS.items()}
        losses = {title: [float(step(x, y)) for _ in range(WARM_UP)] for title, step in steps.items()}
        for title, found in losses.items():
            if name == "lenet" and max(abs(a - b) for a, b in zip(found, losses["eager"], strict=True)) > ALIKE:
                raise SystemExit(f"{title} trains otherwise than eager: {found}, {losses['eager']}")
        rounds = measure(steps, (x, y), seconds)
    for title, found in rounds.items():
        print(f"{name} {size}: {title:26} {statistics.median(found) * 1e3:8.2f} ms")
    for other, bar in BARS.items():
        ratio = ratios(rounds[other], rounds[TRAINER])
        said = f"{other} / {TRAINER}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), bar {bar}"
        print(f"{name} {size}: {said}{'' if ratio.median >= bar else ', BELOW'}")


def measure(
    steps: Mapping[str, Step], batch: tuple[torch.Tensor, torch.Tensor], seconds: float
) -> dict[str, list[float]]:
    """Let each take its turn of a few steps, again and again; give the median time of a step by contestant and turn."""
    rounds: dict[str, list[float]] = {title: [] for title in steps}
    end = time.perf_counter() + seconds
    while not all(rounds.values()) or time.perf_counter() < end:
        for title, step in steps.items():
            step(*batch)  # not counted: threads of the contestant before may still be spinning
            found = []
            for _ in range(STEPS_OF_A_TURN):
                start = time.perf_counter()
                step(*batch)
                found.append(time.perf_counter() - start)
            rounds[title].append(statistics.median(found))
    return rounds


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0] if words else "lenet", float(words[1]) if len(words) > 1 else 15.0)
