"""LeNet and ResNet-18 trained imperatively and by `weft.step` -> accuracies, row beside row.

`python -m bench.accuracy [lenet|resnet18] [--epochs 4] [--samples 6400] [--seeds 2] [--fashion-mnist]` writes a page
and the figures under build/bench/accuracy/. Both ways start from the same parameters and see the same
batches; rounding parts them after some steps, so what is compared is where they arrive, beside how far seeds are apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import weft
from bench.machine import ROOT, describe, short_name
from bench.models.chapter import lenet, resnet18
from weft.train.data import Batches, ImageData

FOLDER = ROOT / "build" / "bench" / "accuracy"
LARGEST_DIFFERENCE = 0.01  # of the mean accuracies after the last epoch


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained."""

    net: Callable[[], nn.Module]
    batch_size: int
    rate: float
    momentum: float = 0.0


RECIPES = {"lenet": Recipe(lenet, 256, 0.1, 0.9), "resnet18": Recipe(resnet18, 64, 0.05)}


@dataclass(frozen=True, slots=True)
class Curve:
    """One training: the loss of each step, the accuracy after each epoch, and the seconds an epoch took."""

    losses: list[float]
    accuracies: list[float]
    seconds: list[float]


def imperative_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """Make the chapter's step: forward, loss, backward and update, operator by operator."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def program_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """Make the same as one program."""
    return weft.step(net, nn.functional.cross_entropy, optimizer)


WAYS = {"eager": imperative_step, "weft.step": program_step}


def accuracy(net: nn.Module, test: Batches) -> float:
    """The share of right answers, computed imperatively whatever trained the network."""
    net.eval()
    with torch.no_grad():
        right = sum(int((net(x).argmax(1) == y).sum()) for x, y in test)
    net.train()
    return right / len(test.data)


def train(way: str, recipe: Recipe, data: tuple[ImageData, ImageData], epochs: int, seed: int) -> Curve:
    """Train from the seed's parameters, in the seed's order, at a rate that falls to nothing."""
    torch.manual_seed(seed)
    net = recipe.net().train()
    optimizer = torch.optim.SGD(net.parameters(), recipe.rate, momentum=recipe.momentum)
    step = WAYS[way](net, optimizer)
    # At a rate that stays, the accuracy of few samples jumps from epoch to epoch.
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs)
    batches, test = Batches(data[0], recipe.batch_size, seed=seed), Batches(data[1], 500, shuffle=False)
    curve = Curve([], [], [])
    for _ in range(epochs):
        start = time.perf_counter()
        losses = [step(x, y) for x, y in batches]
        curve.losses.extend(loss.item() for loss in losses)
        curve.seconds.append(time.perf_counter() - start)
        scheduler.step()
        curve.accuracies.append(accuracy(net, test))
    return curve


def difference(found: Mapping[str, Sequence[Curve]]) -> float:
    """By how much the ways' mean accuracies after the last epoch differ: Weft's less eager's."""
    eager, ours = (statistics.mean(curve.accuracies[-1] for curve in found[way]) for way in WAYS)
    return ours - eager


def page(net: str, title: str, found: Mapping[str, Sequence[Curve]], machine: Mapping[str, Any], samples: int) -> str:
    """The figures as a page."""
    seeds = len(next(iter(found.values())))
    epochs = len(next(iter(found.values()))[0].accuracies)
    lines = [
        f"# {title}",
        "",
        "| seed | way | first loss | last loss | " + " | ".join(f"epoch {epoch + 1}" for epoch in range(epochs)) + " |",
        "|---|---|---|---|" + "---|" * epochs,
    ]
    for seed in range(seeds):
        for way, runs in found.items():
            curve = runs[seed]
            ends = f"{curve.losses[0]:.4f} | {curve.losses[-1]:.4f}"
            shares = " | ".join(f"{share:.4f}" for share in curve.accuracies)
            lines.append(f"| {seed} | {way} | {ends} | {shares} |")
    spread = [curve.accuracies[-1] for curve in found["eager"]]
    apart = f"Mean accuracy after the last epoch, `weft.step` less eager: {difference(found):+.4f}"
    command = f"python -m bench.accuracy {net} --epochs {epochs} --samples {samples} --seeds {seeds}"
    where = f"{machine['processor']}, {machine['threads']} threads, commit {machine['commit']}"
    lines += [
        "",
        f"{apart}; eager's seeds are {max(spread) - min(spread):.4f} apart.",
        "",
        f"{where}, PyTorch {machine['versions']['torch']}. `{command}` measures again.",
    ]
    return "\n".join(lines) + "\n"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=RECIPES, nargs="?", default="lenet")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=6400, help="how many samples are trained on; half as many test")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fashion-mnist", action="store_true", help="the real images, downloaded; else made-up ones")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results go")
    return parser.parse_args(arguments)


def load(options: argparse.Namespace) -> tuple[ImageData, ImageData]:
    """The first samples of either data set."""
    counts = options.samples, options.samples // 2
    if not options.fashion_mnist:
        return weft.data.synthetic_fashion_mnist(*counts)
    train, test = (
        ImageData(whole.images[:count], whole.labels[:count], whole.name)
        for whole, count in zip(weft.data.fashion_mnist(), counts, strict=True)
    )
    return train, test


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print, write; 1 if the ways arrive at different accuracies."""
    options = parse(arguments)
    recipe, data = RECIPES[options.net], load(options)
    found: dict[str, list[Curve]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        for way, runs in found.items():
            runs.append(train(way, recipe, data, options.epochs, seed))
            shares = " ".join(f"{share:.4f}" for share in runs[-1].accuracies)
            print(
                f"seed {seed}  {way:<9}  accuracy {shares}  {statistics.median(runs[-1].seconds):.1f} s an epoch",
                flush=True,
            )
    title = f"{options.net}, batch {recipe.batch_size}, {len(data[0]):,} samples: {data[0].name}"
    machine = describe(torch.get_num_threads())
    stem = options.folder / f"{short_name()}-{options.net}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    curves = {way: [asdict(curve) for curve in runs] for way, runs in found.items()}
    stem.with_suffix(".json").write_text(json.dumps({"machine": machine, "curves": curves}, indent=1) + "\n")
    text = page(options.net, title, found, machine, len(data[0]))
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    apart = difference(found)
    print(f"mean accuracy of weft.step less eager's: {apart:+.4f} (at most {LARGEST_DIFFERENCE} apart)")
    return 0 if abs(apart) <= LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
