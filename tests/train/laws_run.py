"""Training on several processes compared, in each of them, with plain PyTorch on the whole batch."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import weft
from weft.train.data import Batches, ImageData
from weft.train.processes.peers import find_peers

Batch = tuple[torch.Tensor, torch.Tensor]
SOURCE = torch.Generator().manual_seed(3)
X, Y = torch.randn(24, 5, generator=SOURCE).double(), torch.arange(24) % 3


class Branching(nn.Module):
    """Uses one layer or another, by what the samples are; a third one never."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.never = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) if len(x) and x[0, 0] > 0 else self.second(x)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def masked(scores: torch.Tensor, y: torch.Tensor) -> Any:
    mask = y != 1
    return (functional.cross_entropy(scores, y, reduction="none") * mask).sum(), mask.sum()


def prepared(make: Callable[[], nn.Module], loss: Any = functional.cross_entropy, **options: Any) -> weft.Trainer:
    torch.manual_seed(1)
    net = make().double()
    devices = options.pop("devices", "cpu:0")
    return weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.5, momentum=0.9), loss, devices, **options)


def expected(make: Callable[[], nn.Module], updates: Sequence[Sequence[Batch]], loss: Any) -> nn.Module:
    """Each update is of several pieces: the sum of their losses over the sum of their counts."""
    torch.manual_seed(1)
    net = make().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
    for pieces in updates:
        optimizer.zero_grad()
        total: Any = 0.0
        count: Any = 0.0
        for x, y in pieces:
            if len(y):
                found = loss(net(x), y)
                part, number = found if isinstance(found, tuple) else (found * len(y), len(y))
                total, count = total + part, count + number
        (total / count).backward()
        optimizer.step()
    return net


def agree(trainer: weft.Trainer, net: nn.Module) -> None:
    for ours, theirs in zip(trainer.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def global_batches(rank: int, world: int) -> None:
    for loss in (functional.cross_entropy, masked):
        for devices in ("cpu:0", ["cpu:0", "cpu:1"]):
            trainer = prepared(plain, loss, devices=devices)
            batches = [(X[:7], Y[:7]), (X[:1], Y[:1]), (X, Y)]
            for x, y in [*batches, (X[:0], Y[:0])]:
                trainer.step(x, y)
            agree(trainer, expected(plain, [[batch] for batch in batches], loss))


def local_batches(rank: int, world: int) -> None:
    for make in (plain, Branching):
        trainer = prepared(make, batches="local")
        steps = [
            [(X[3 * r : 3 * r + r], Y[3 * r : 3 * r + r]) for r in range(world)],
            [(X[r::5], Y[r::5]) for r in range(world)],
        ]
        for step in steps:
            trainer.step(*step[rank])
        agree(trainer, expected(make, steps, functional.cross_entropy))
        if make is Branching:
            assert trainer.net.never.weight.grad is None


def unequal_epochs(rank: int, world: int) -> None:
    def batches(r: int) -> list[Batch]:
        return [(X[4 * i + r : 4 * i + r + 2], Y[4 * i + r : 4 * i + r + 2]) for i in range(r + 1)]

    for accumulate in (1, 2):
        trainer = prepared(plain, batches="local", accumulate=accumulate)
        trainer.fit(batches(rank), epochs=1, say=lambda line: None)
        rounds = [[batches(r)[i] for r in range(world) if i < r + 1] for i in range(world)]
        updates = [[*chain(*rounds[i : i + accumulate])] for i in range(0, world, accumulate)]
        agree(trainer, expected(plain, updates, functional.cross_entropy))


def evaluation(rank: int, world: int) -> None:
    images = ImageData(torch.zeros(23, 5, 1, dtype=torch.uint8), torch.zeros(23, dtype=torch.int64), "zeros")
    trainer = prepared(lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), callbacks=[Stop()])
    with torch.no_grad():
        trainer.net[1].bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    data = [(x.double(), y) for x, y in Batches(images, 4, shuffle=False)]
    assert trainer._tested(data)["test_acc"] == 1.0
    said: list[str] = []
    trainer.fit(data, data, epochs=5, say=said.append)
    assert trainer.epoch == 1
    assert len(said) == (2 if rank == 0 else 0)


class Stop(weft.Callback):
    """Stops on the last rank only."""

    def after_step(self, trainer: Any, loss: Any) -> None:
        if trainer.peers.rank == trainer.peers.world - 1:
            trainer.stop("enough")


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))


def synchronised_norm(rank: int, world: int) -> None:
    trainer = prepared(normed, sync_batchnorm=True)
    for size in (7, 2, 24):  # one rank has no sample of two
        trainer.step(X[:size], Y[:size])
    agree(trainer, expected(normed, [[(X[:size], Y[:size])] for size in (7, 2, 24)], functional.cross_entropy))
    before = [buffer.clone() for name, buffer in trainer.net.named_buffers() if "running" in name]
    trainer.step(X[:0], Y[:0])
    after = [buffer for name, buffer in trainer.net.named_buffers() if "running" in name]
    assert all(map(torch.equal, before, after))


def deterministic() -> nn.Module:
    """Train with dropout and batch norm in fixed shards; the test compares with a single process."""
    trainer = prepared(lambda: nn.Sequential(normed(), nn.Dropout(0.5)), deterministic=True)
    for size in (16, 20, 24):  # each of the shards needs two samples for batch norm
        trainer.step(X[:size], Y[:size])
    return trainer.net


def same_bits(rank: int, world: int) -> None:
    net = deterministic()
    if rank == 0:
        weft.save(FOLDER[0] / "bits.safetensors", net)


FOLDER: list[Path] = []
LAWS = (global_batches, local_batches, unequal_epochs, evaluation, synchronised_norm, same_bits)


class Threads:
    """Writes down which threads are left when Python takes its modules down, behind all that is to be done at exit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __del__(self, listed: Any = os.listdir, opened: Any = open) -> None:
        """Name the threads by what the system calls them."""
        names = []
        for number in listed("/proc/self/task"):
            with opened(f"/proc/self/task/{number}/comm") as name:
                names.append(name.read())
        with opened(self.path, "w") as text:
            text.write("".join(names))


def run(*, folder: str) -> Any:
    """Check the laws, then train a little."""
    peers = find_peers()
    assert peers is not None
    FOLDER.append(Path(folder))
    vars(builtins)["_threads_left"] = Threads(Path(folder) / f"threads-{peers.rank}")  # which go last of all modules
    for law in LAWS:
        law(peers.rank, peers.world)
        (Path(folder) / f"{law.__name__}-{peers.rank}").touch()
    return prepared(plain), [(X, Y)]
