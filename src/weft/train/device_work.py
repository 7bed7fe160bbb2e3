"""One process's part of a batch -> forward, loss and backward on its devices; the gradients are in the replicas."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from weft.devices import Device
from weft.train.devices.batch import samples_in, samples_of
from weft.train.devices.measured_shares import MeasuredShares, finish
from weft.train.devices.replicas import Replicas
from weft.train.devices.split import load_pieces, split_sizes, training_sizes
from weft.train.devices.synced_norm import Meeting, SyncedNorm
from weft.train.devices.threads import run_on
from weft.train.processes.peers import Peers
from weft.train.summed_loss import nothing_of, summed_loss
from weft.train.trainer_options import TrainerOptions


@dataclass
class Numbers:
    """Sums over samples: of the loss, of what it is divided by, and how many samples there were."""

    loss: float | torch.Tensor = 0.0
    count: float = 0.0
    samples: int = 0


class DeviceWork:
    """Computes the gradients of a batch on the devices of this process."""

    def __init__(
        self, replicas: Replicas, options: TrainerOptions, measured: MeasuredShares | None, peers: Peers | None
    ) -> None:
        self.replicas = replicas
        self.peers = peers
        self.options = options
        self.measured = measured

    def pieces(self, x: Any, y: Any, shares: Sequence[float]) -> list[tuple[int, Any, Any]]:
        """Split a batch; gives the devices that get something, each with its part."""
        met_elsewhere = self.options.sync_batchnorm and self.peers is not None
        count, places = samples_of(x, y), self.replicas.places
        if not count and met_elsewhere:  # other processes meet this one in batch norm
            return [(0, x, y)]
        together = self.options.sync_batchnorm
        sizes = split_sizes(count, shares) if together else training_sizes(self.replicas.nets[0], count, shares)
        pieces = zip(load_pieces(x, places, sizes), load_pieces(y, places, sizes), strict=True)
        return [(index, *piece) for index, piece in enumerate(pieces) if sizes[index]]

    def run(self, loss_fn: Any, busy: Sequence[tuple[int, Any, Any]]) -> Numbers:
        """Compute on all devices at once."""
        places = [self.replicas.places[index] for index, _, _ in busy]
        if self.options.sync_batchnorm:
            results = self._run_together(loss_fn, busy, places)
        else:
            results = run_on([partial(self._backward, loss_fn, *piece) for piece in busy], places)
        if busy and busy[0][0]:  # the first device had nothing: statistics are those of the first that had
            self.replicas.take_buffers(busy[0][0])
        home = self.replicas.places[0].torch_device
        losses = [part.to(home) for part, _ in results]
        return Numbers(
            torch.stack(losses).sum() if losses else 0.0,
            sum(float(number) for _, number in results),
            sum(samples_in(part, labels) for _, part, labels in busy),
        )

    def _run_together(self, loss_fn: Any, busy: Sequence[tuple[int, Any, Any]], places: Sequence[Device]) -> list[Any]:
        """Compute with batch norm over all samples."""
        meeting = Meeting(len(busy), None if self.peers is None else self.peers.sum)

        def member(number: int, piece: tuple[int, Any, Any]) -> Any:
            try:
                with SyncedNorm(meeting, number):
                    return self._backward(loss_fn, *piece)
            except BaseException as error:
                meeting.leave(error)
                raise

        try:
            return run_on([partial(member, number, piece) for number, piece in enumerate(busy)], places)
        except threading.BrokenBarrierError:
            raise (meeting.error or AssertionError("nobody failed")) from None

    def _backward(self, loss_fn: Any, index: int, x: Any, y: Any) -> tuple[torch.Tensor, Any]:
        start, samples = time.perf_counter(), samples_in(x, y)
        kind, cast = self.replicas.places[index].kind, self.options.autocast
        with torch.enable_grad(), torch.autocast(kind, dtype=cast) if cast is not None else nullcontext():
            answers = self.replicas.nets[index](x)
            # A mean over no samples is no number, and would spread: their part of the sum is zero.
            loss, count = summed_loss(loss_fn, answers, y) if samples else (nothing_of(answers), 0.0)
        scaler = self.options.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()
        if self.measured is not None:
            finish(self.replicas.places[index])
            self.measured.note(index, samples, time.perf_counter() - start)
        return loss.detach(), count
