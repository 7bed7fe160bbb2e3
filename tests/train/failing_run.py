"""A small training run in which one rank fails as it is told: what `tests.train.failing` starts by the dozen."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.train.data import Batches, ImageData
from weft.train.processes.peers import find_peers

STEPS = 6  # an epoch


def hang() -> None:
    time.sleep(1000)


def spin() -> None:
    while True:
        pass


def fail() -> None:
    raise ValueError("this batch is broken")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    os._exit(3)


FAILURES = {function.__name__: function for function in (hang, spin, fail, kill, stop, leave)}


class Noted(weft.Trainer):
    """Writes down when it was told that another rank failed, and what it was told."""

    folder = Path()

    def fit(self, *arguments: Any, **keywords: Any) -> Any:
        rank = self.peers.rank if self.peers is not None else 0
        try:
            return super().fit(*arguments, **keywords)
        except weft.ExecutionError as error:
            said = {"time": time.time(), "text": str(error)}
            (self.folder / f"told-{rank}.json").write_text(json.dumps(said))
            raise


def run(
    *, folder: str, how: str, rank: int, step: int, place: str = "loss", checkpoints: Any = None, patience: float = 1.0
) -> Any:
    """Train a small model; at this step, this rank fails in the loss, in the data or in a callback."""
    peers = find_peers()
    mine = peers is not None and peers.rank == rank
    count = {"loss": 0, "data": 0, "callback": 0}

    def perhaps(here: str) -> None:
        count[here] += 1
        if mine and here == place and count[here] == step:
            (Path(folder) / "failed").write_text(str(time.time()))
            FAILURES[how]()

    def loss_fn(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        perhaps("loss")
        return functional.cross_entropy(scores, y)

    class Data(Batches):
        def batch(self, epoch: int, position: int) -> Any:
            perhaps("data")
            return super().batch(epoch, position)

    class Call(weft.Callback):
        def after_step(self, trainer: Any, loss: Any) -> None:
            perhaps("callback")

    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    images, labels = torch.randint(256, (STEPS * 8, 4, 4), dtype=torch.uint8), torch.randint(3, (STEPS * 8,))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    options = {"callbacks": [Call()], "checkpoints": checkpoints, "patience": patience}
    trainer = Noted(net, optimizer, loss_fn, "cpu:0", **options)
    trainer.folder = Path(folder)
    return trainer, Data(ImageData(images, labels, "small"), 8)
