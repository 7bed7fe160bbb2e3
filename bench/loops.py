"""What hybridizing costs or gains in an ordinary training loop: `python -m bench.loops [--seconds 6] [ROW ...]`.

Eager, the same loop with hybridized networks, and `weft.step`, in one process: losses of the first steps are compared,
then turns of a fifth of a second each; one in which other processes used the cores does not count. Prints how many
steps, the fastest tenth and the median, and eager's time over ours of both. Claim: a hybridized network is not slower
than eager in any row.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import weft
from bench.machine import describe, foreign_cores, load
from bench.models import chapter, sequence, tables
from bench.models.subject import SEED

TURN, UNCOUNTED = 0.2, 2  # seconds of a turn, and how many of its steps only warm up
FOREIGN = 0.15  # of a core that others may use in a turn
PATIENCE = 4  # so many times longer than wanted it goes on where others disturb it
CHECKED = 4  # steps whose losses are compared
TOLERANCE = 2e-3  # of a loss after as many steps, in which roundings have grown
Step = Callable[[], torch.Tensor]
Hybridize = Callable[[Any], Any]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Loop:
    """A row: `make` gives a step of an ordinary loop from what hybridizes a network, `whole` one of `weft.step`."""

    name: str
    make: Callable[[Hybridize], Step]
    whole: Callable[[], Step] | None = None


class Recurrent(nn.Module):
    """A recurrent network with a linear layer on its last step."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.recurrent = kind(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Classify a sequence by where it ends."""
        return self.head(self.recurrent(steps)[0][-1])


def convnet() -> nn.Sequential:
    """Four convolutions with batch norm, for images of 32 x 32."""
    layers: list[nn.Module] = []
    for before, channels in itertools.pairwise((3, 32, 32, 64, 64)):
        layers += [nn.Conv2d(before, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if channels > before or channels == 64 else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def trained(  # noqa: PLR0913, PLR0917 - what a loop is made of
    name: str,
    module: Callable[[], nn.Module],
    inputs: Callable[[], torch.Tensor],
    target: Callable[[], torch.Tensor],
    optimizer: Callable[..., torch.optim.Optimizer],
    loss: Loss = functional.cross_entropy,
) -> Loop:
    """One network, its loss, one optimizer; a few batches in turn."""

    def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(SEED)
        net = module().train()
        batches = [(inputs(), target()) for _ in range(4)]
        return net, optimizer(net.parameters()), itertools.cycle(batches)

    def make(hybridize: Hybridize) -> Step:
        net, update, batches = parts()
        net = hybridize(net)

        def step() -> torch.Tensor:
            x, y = next(batches)
            update.zero_grad()
            value = loss(net(x), y)
            value.backward()
            update.step()
            return value

        return step

    def whole() -> Step:
        net, update, batches = parts()
        step = weft.step(net, loss, update)
        return lambda: step(*next(batches))

    return Loop(name, make, whole)


def adversarial(name: str, noise: int, width: int, data: int, batch: int) -> Loop:
    """A generator and a discriminator, each with its optimizer."""

    def make(hybridize: Hybridize) -> Step:
        torch.manual_seed(SEED)
        generator = hybridize(nn.Sequential(*chapter.mlp(noise, width, data), nn.Tanh()))
        discriminator = hybridize(chapter.mlp(data, width, 1))
        make_optimizer = partial(torch.optim.Adam, lr=2e-4, betas=(0.5, 0.999))
        of_generator = make_optimizer(generator.parameters())
        of_discriminator = make_optimizer(discriminator.parameters())
        loss = functional.binary_cross_entropy_with_logits
        batches = itertools.cycle([(torch.rand(batch, data), torch.randn(batch, noise)) for _ in range(4)])
        ones, zeros = torch.ones(batch, 1), torch.zeros(batch, 1)

        def step() -> torch.Tensor:
            real, drawn = next(batches)
            of_discriminator.zero_grad()
            made = generator(drawn)
            first = loss(discriminator(real), ones) + loss(discriminator(made.detach()), zeros)
            first.backward()
            of_discriminator.step()
            of_generator.zero_grad()
            second = loss(discriminator(made), ones)
            second.backward()
            of_generator.step()
            return first + second

        return step

    return Loop(name, make)


def normal(*shape: int) -> Callable[[], torch.Tensor]:
    """Give a maker of a normally distributed tensor."""
    return partial(torch.randn, *shape)


def whole_numbers(below: int, *shape: int) -> Callable[[], torch.Tensor]:
    """Give a maker of whole numbers: categories, classes."""
    return partial(torch.randint, below, shape)


SGD = partial(torch.optim.SGD, lr=0.01)
MOMENTUM = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.001)
ADAMW = partial(torch.optim.AdamW, lr=0.001)
IMAGE_MLP = partial(chapter.mlp, 784, 256, 10)
CODER = partial(chapter.mlp, 784, 256, 64, 256, 784)
SEQUENCE = normal(4, 64, 256)
SCORES = functional.binary_cross_entropy_with_logits


def _mlp(name: str, batch: int, optimizer: Callable[..., torch.optim.Optimizer]) -> Loop:
    return trained(name, IMAGE_MLP, normal(batch, 784), whole_numbers(10, batch), optimizer)


def _recurrent(name: str, kind: type[nn.RNNBase], batch: int) -> Loop:
    return trained(name, partial(Recurrent, kind), normal(32, batch, 128), whole_numbers(10, batch), ADAM)


LOOPS = (
    _mlp("mlp_32_sgd", 32, SGD),
    _mlp("mlp_32_adam", 32, ADAM),
    _mlp("mlp_256_sgd", 256, SGD),
    _mlp("mlp_256_adam", 256, ADAM),
    trained("tiny_8_sgd", partial(chapter.mlp, 20, 32, 3), normal(8, 20), whole_numbers(3, 8), SGD),
    trained("wide_1024", partial(chapter.mlp, 1024, 1024, 1024, 10), normal(64, 1024), whole_numbers(10, 64), MOMENTUM),
    trained("wide_4096", partial(chapter.mlp, 1024, 4096, 10), normal(64, 1024), whole_numbers(10, 64), ADAM),
    adversarial("gan_64", 64, 128, 784, 64),
    adversarial("gan_256", 100, 256, 784, 256),
    trained("autoencoder", CODER, normal(128, 784), normal(128, 784), ADAM, functional.mse_loss),
    trained("lenet_64", chapter.lenet, normal(64, 1, 28, 28), whole_numbers(10, 64), SGD),
    trained("lenet_256", chapter.lenet, normal(256, 1, 28, 28), whole_numbers(10, 256), SGD),
    trained("convnet_32", convnet, normal(32, 3, 32, 32), whole_numbers(10, 32), ADAM),
    trained("encoder", sequence.encoder_layer, SEQUENCE, SEQUENCE, ADAMW, functional.mse_loss),
    _recurrent("lstm", nn.LSTM, 8),
    _recurrent("gru", nn.GRU, 8),
    trained("lstm_2x128", sequence.LastStep, normal(32, 8, 128), whole_numbers(10, 8), ADAM),
    trained("deepfm", tables.DeepFM, whole_numbers(1000, 256, 8), partial(torch.rand, 256), ADAM, SCORES),
)


def compare(name: str, contestants: dict[str, Step]) -> None:
    """Stop the run if losses of the first steps differ by more than roundings explain."""
    losses = {who: [float(step()) for _ in range(CHECKED)] for who, step in contestants.items()}
    expected = losses["eager"]
    for who, found in losses.items():
        if any(abs(one - other) > TOLERANCE * abs(other) for one, other in zip(found, expected, strict=True)):
            raise SystemExit(f"{name}, {who}: losses {found} in the place of {expected}")


def in_turn(contestants: dict[str, Step], seconds: float) -> dict[str, list[float]]:
    """Give the times of single steps, sorted."""
    quiet: dict[str, list[float]] = {who: [] for who in contestants}
    disturbed: dict[str, list[float]] = {who: [] for who in contestants}
    start = time.perf_counter()
    while True:
        for who, step in contestants.items():
            before = load(())
            times = turn(step)
            foreign = foreign_cores(before, load(()))
            (quiet if foreign is None or foreign < FOREIGN else disturbed)[who] += times[UNCOUNTED:]
        gone, counted = time.perf_counter() - start, min(map(sum, quiet.values()))
        if counted > seconds / len(contestants) or gone > PATIENCE * seconds:
            return {who: sorted(quiet[who] or disturbed[who]) for who in contestants}


def turn(step: Step) -> list[float]:
    """Give the times of the steps of one turn."""
    times: list[float] = []
    start = before = time.perf_counter()
    while before < start + TURN or len(times) <= UNCOUNTED:
        step()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    return times


def measure(loop: Loop, seconds: float) -> str:
    """Give one line about a row."""
    contestants = {"eager": loop.make(lambda net: net), "hybrid": loop.make(weft.hybridize)}
    if loop.whole is not None:
        contestants["step"] = loop.whole()
    compare(loop.name, contestants)
    in_turn(contestants, seconds / 6)
    times = in_turn(contestants, seconds)
    best = {who: statistics.mean(found[: max(1, len(found) // 10)]) for who, found in times.items()}
    middle = {who: statistics.median(found) for who, found in times.items()}
    parts = [f"{loop.name:14}"]
    for who in contestants:
        parts.append(f"{who} {len(times[who])} x {1e3 * best[who]:7.3f} {1e3 * middle[who]:7.3f}")
        if who != "eager":
            parts[-1] += f" ({best['eager'] / best[who]:4.2f} {middle['eager'] / middle[who]:4.2f})"
    return "  ".join(parts)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=["*"])
    parser.add_argument("--seconds", type=float, default=6)
    given = parser.parse_args()
    machine = describe(2)
    print(f"{machine['processor']}, {machine['threads']} threads, torch {machine['versions']['torch']}")
    print("milliseconds of the fastest tenth and of the median (eager over it)")
    for loop in LOOPS:
        if any(fnmatch.fnmatch(loop.name, pattern) for pattern in given.rows):
            print(measure(loop, given.seconds), flush=True)


if __name__ == "__main__":
    main()
