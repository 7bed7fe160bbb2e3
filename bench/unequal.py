"""`python -m bench.unequal [ROUNDS]`: training on two virtual devices of which the second is throttled.

Three times slower: measured shares beside equal ones. So slow that it is useless: measured shares beside one device.
The losses are compared first; then the contestants take turns. What counts is a turn's mean, trials included.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

import weft
from weft.console.bench.harness import ratios
from weft.train.devices.shares import TRIED

BATCH = 256
SLOWER, USELESS = 3.0, 30.0
ALIKE = 1e-3
WARM_UP = 24  # steps in which speeds are measured, and a suspect is compared
FAST, SLOW = "cpu:0", "cpu:1"
EQUAL, MEASURED = "3:1, equal shares", "3:1, measured shares"
ALONE, LEFT_OUT = "one device", "30:1, measured shares"
BARS = ((EQUAL, MEASURED, 1.8), (ALONE, LEFT_OUT, 0.95))  # the first's time over the second's, at least


class Throttle:
    """Makes a module's forward and backward take so many times as long: after each part of them it sleeps.

    The core is free meanwhile, as if the device were another machine's.
    """

    def __init__(self, net: torch.nn.Module, factor: float) -> None:
        self._sleep = factor - 1
        self._since = 0.0
        net.register_forward_pre_hook(lambda *_: self._begin())
        net.register_forward_hook(lambda *_: self._wait())
        for parameter in net.parameters():  # the gradient of the first layer's comes last
            parameter.register_post_accumulate_grad_hook(lambda _: self._wait())

    def _begin(self) -> None:
        self._since = time.perf_counter()

    def _wait(self) -> None:
        time.sleep(self._sleep * (time.perf_counter() - self._since))
        self._begin()


@dataclass(frozen=True)
class Contestant:
    """Devices, their shares, and how many times slower the second one is."""

    devices: tuple[str, ...]
    shares: str = "equal"
    slower: float = 1.0

    def trainer(self) -> weft.Trainer:
        """Make the same network and optimizer for each."""
        torch.manual_seed(0)
        net = weft.models.LeNet()
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        made = weft.Trainer(net, optimizer, functional.cross_entropy, list(self.devices), shares=self.shares)
        for replica in made.replicas.nets[1:]:
            Throttle(replica, self.slower)
        return made


CONTESTANTS = {
    EQUAL: Contestant((FAST, SLOW), "equal", SLOWER),
    MEASURED: Contestant((FAST, SLOW), "measured", SLOWER),
    ALONE: Contestant((FAST,)),
    LEFT_OUT: Contestant((FAST, SLOW), "measured", USELESS),
}


def turn(trainer: weft.Trainer, batch: tuple[torch.Tensor, torch.Tensor], steps: int = TRIED) -> float:
    """Give the mean time of a step, over as many as lie between two trials of a slow device."""
    trainer.step(*batch)  # not counted: the cores come from another contestant
    start = time.perf_counter()
    for _ in range(steps):
        trainer.step(*batch)
    return (time.perf_counter() - start) / steps


def main(rounds: int) -> None:
    """Compare the losses of the first steps, let speeds be measured, then measure in turn."""
    logging.basicConfig(format="%(message)s")
    torch.set_num_threads(1)  # a device is one core, also when it is alone
    batch = torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    trainers = {title: contestant.trainer() for title, contestant in CONTESTANTS.items()}
    losses = {title: [float(trainer.step(*batch)) for _ in range(WARM_UP)] for title, trainer in trainers.items()}
    for title, found in losses.items():
        if max(abs(a - b) for a, b in zip(found, losses[ALONE], strict=True)) > ALIKE:
            raise SystemExit(f"{title} trains otherwise than one device: {found}, {losses[ALONE]}")
    times: dict[str, list[float]] = {title: [] for title in trainers}
    for _ in range(rounds):
        for title, trainer in trainers.items():
            times[title].append(turn(trainer, batch))
    for title, trainer in trainers.items():
        print(f"lenet {BATCH}: {title:22} {statistics.median(times[title]) * 1e3:8.2f} ms  {parts(trainer)}")
    for slow, fast, bar in BARS:
        ratio = ratios(times[slow], times[fast])
        said = f"{slow} / {fast}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), bar {bar}"
        print(f"lenet {BATCH}: {said}{'' if ratio.median >= bar else ', BELOW'}")


def parts(trainer: Any) -> str:
    """Say the shares of the next batch."""
    whole = sum(trainer.shares)
    return "shares " + " : ".join(f"{share / whole:.2f}" for share in trainer.shares)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
