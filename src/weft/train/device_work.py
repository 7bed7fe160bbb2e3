"""One process's part of a batch -> forward, loss and backward on its devices; the gradients are in the replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from weft.train.device_threads import run_on
from weft.train.measured_shares import MeasuredShares, finish
from weft.train.replicas import Replicas
from weft.train.split import split_batch
from weft.train.summed_loss import summed_loss
from weft.train.trainer_options import TrainerOptions


@dataclass
class Numbers:
    """Sums over samples: of the loss, of what it is divided by, and how many samples there were."""

    loss: float | torch.Tensor = 0.0
    count: float = 0.0
    samples: int = 0


class DeviceWork:
    """Computes the gradients of a batch on the devices of this process."""

    def __init__(self, replicas: Replicas, options: TrainerOptions, measured: MeasuredShares | None) -> None:
        self.replicas = replicas
        self.options = options
        self.measured = measured

    def pieces(self, x: torch.Tensor, y: torch.Tensor, shares: Sequence[float]) -> list[tuple[int, Any, Any]]:
        """Split a batch; gives the devices that get something, each with its part."""
        pieces = zip(*split_batch(x, y, self.replicas.places, shares), strict=True)
        return [(index, part, labels) for index, (part, labels) in enumerate(pieces) if len(labels)]

    def run(self, loss_fn: Any, busy: Sequence[tuple[int, Any, Any]]) -> Numbers:
        """Compute on all devices at once."""
        places = self.replicas.places
        work = [partial(self._backward, loss_fn, index, part, labels) for index, part, labels in busy]
        results = run_on(work, [places[index] for index, _, _ in busy])
        home = places[0].torch_device
        losses = [part.to(home) for part, _ in results]
        return Numbers(
            torch.stack(losses).sum() if losses else 0.0,
            sum(float(number) for _, number in results),
            sum(len(labels) for _, _, labels in busy),
        )

    def _backward(self, loss_fn: Any, index: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, Any]:
        start = time.perf_counter()
        kind, cast = self.replicas.places[index].kind, self.options.autocast
        with torch.enable_grad(), torch.autocast(kind, dtype=cast) if cast is not None else nullcontext():
            loss, count = summed_loss(loss_fn, self.replicas.nets[index](x), y)
        scaler = self.options.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()
        if self.measured is not None:
            finish(self.replicas.places[index])
            self.measured.note(index, len(y), time.perf_counter() - start)
        return loss.detach(), count
