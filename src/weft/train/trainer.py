"""A module, an optimizer, a loss and devices -> training steps that give what one device would."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from weft.api.hybrid import hybridize
from weft.errors import UsageError
from weft.train.checkpoint_folder import Checkpoints
from weft.train.choose_devices import find_devices
from weft.train.device_threads import run_on
from weft.train.evaluate import evaluate
from weft.train.measured_shares import MeasuredShares, finish
from weft.train.replicas import Replicas
from weft.train.split import Shares, resolved_shares, split_batch
from weft.train.summed_loss import summed_loss

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class TrainerOptions:
    """What of training may be chosen: see `Trainer`."""

    shares: Shares = "equal"
    accumulate: int = 1
    clip_norm: float | None = None
    scheduler: Any = None
    checkpoints: Checkpoints | None = None
    hybridize: bool = False


class Trainer:
    """Trains a module on one or many devices: `trainer.step(x, y)`, `trainer.fit(train, test, epochs=4)`.

    The gradient is the sum of all devices' summed losses, divided once by the global count: over devices, whatever
    their shares, and over `accumulate` batches. A batch is always the global one. `loss_fn` gives a mean over samples,
    or a pair of a sum and a count. Options: see `TrainerOptions`. Batch norm takes its running statistics from the
    first device's part of the batch, and dropout draws on each device.
    """

    def __init__(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: Any, devices: Any = "all", **options: Any
    ) -> None:
        self.net = net
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.options = TrainerOptions(**options)
        if self.options.accumulate < 1:
            raise UsageError(f"accumulate is {self.options.accumulate}")
        places = find_devices(devices)
        self.devices = places
        self.measured = MeasuredShares(len(places)) if self.options.shares == "measured" else None
        self._shares = [1.0] * len(places) if self.measured else resolved_shares(places, self.options.shares)
        self.replicas = Replicas(net, places, hybridize if self.options.hybridize else _as_it_is)
        self.steps = 0  # updates of the parameters
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self._waiting = 0  # batches since the last update
        self._count: Any = 0.0  # samples in them

    @property
    def shares(self) -> Sequence[float]:
        """The share of each device in the next batch; with "measured", by its speed on this model so far."""
        return self._shares if self.measured is None else self.measured.shares()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Train on one global batch, and give its mean loss; every `accumulate` batches, the parameters change."""
        self.replicas.match()
        places = self.devices
        pieces = zip(*split_batch(x, y, places, self.shares), strict=True)
        busy = [(index, part, labels) for index, (part, labels) in enumerate(pieces) if len(labels)]
        work = [partial(self._backward, index, part, labels) for index, part, labels in busy]
        try:
            results = run_on(work, [places[index] for index, _, _ in busy])
        except BaseException:
            self._forget()  # some devices have gradients of this batch, others have not
            raise
        home = places[0].torch_device
        loss = torch.stack([part.to(home) for part, _ in results]).sum() if results else torch.zeros((), device=home)
        count = sum(float(number) for _, number in results)
        if self.measured is not None:
            self.measured.end_of_step()
        self._count += count
        self._waiting += 1
        if self._waiting == self.options.accumulate:
            self._update()
        return loss / count if count else loss

    def _backward(self, index: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, Any]:
        start = time.perf_counter()
        with torch.enable_grad():
            loss, count = summed_loss(self.loss_fn, self.replicas.nets[index](x), y)
        loss.backward()
        if self.measured is not None:
            finish(self.devices[index])
            self.measured.note(index, len(y), time.perf_counter() - start)
        return loss.detach(), count

    def _update(self) -> None:
        self.replicas.collect_gradients()
        parameters = self.replicas.parameters[0]
        for parameter in parameters:
            if parameter.grad is not None and self._count:
                parameter.grad.div_(self._count)
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.options.clip_norm)
        self.optimizer.step()
        if self.options.scheduler is not None:
            self.options.scheduler.step()
        self._forget()
        self.steps += 1

    def _forget(self) -> None:
        """Begin anew to accumulate."""
        for net in self.replicas.nets:
            net.zero_grad()
        self._waiting, self._count = 0, 0.0

    def fit(
        self,
        train: Batches,
        test: Batches | None = None,
        *,
        epochs: int = 1,
        resume: str | None = None,
        say: Callable[[str], None] = print,
    ) -> list[dict[str, float]]:
        """Train for so many epochs in all, and give the history: loss, seconds, and accuracy where there is `test`.

        With `checkpoints`, each epoch is saved; `resume="auto"` goes on from the newest one, if there is one.
        """
        if resume not in (None, "auto"):
            raise UsageError(f"resume={resume!r}", fix='resume="auto", or trainer.load(checkpoints) before')
        checkpoints = self.options.checkpoints
        if resume == "auto" and checkpoints is not None and checkpoints.latest() is not None:
            self.load(checkpoints, train)
        while self.epoch < epochs:
            start = time.perf_counter()
            self.net.train()
            loss = self._train_epoch(train)
            self.epoch += 1
            row = {"epoch": self.epoch, "loss": loss}
            row["seconds"] = time.perf_counter() - start
            if test is not None:
                row["test_acc"] = evaluate(self.net, test, self.devices)
            self.history.append(row)
            say(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
            if checkpoints is not None:
                self.save(checkpoints, train)
        return self.history

    def _train_epoch(self, train: Batches) -> float:
        """Give the mean loss over the epoch; what is accumulated at its end is an update too."""
        total: Any = 0.0
        count = 0
        for x, y in train:
            total += self.step(x, y) * len(y)
            count += len(y)
        if self._waiting:
            self._update()
        return float(total) / count if count else float("nan")

    def save(self, checkpoints: Checkpoints, data: Any = None) -> None:
        """Save the module, and all that training needs to go on; between updates only."""
        if self._waiting:
            raise UsageError(
                f"{self._waiting} of {self.options.accumulate} batches are accumulated",
                why="their gradients are not part of a checkpoint",
                fix="save after an update",
            )
        checkpoints.save(self.net, self.steps, epoch=self.epoch, history=self.history, **self._parts(data))

    def load(self, checkpoints: Checkpoints, data: Any = None) -> None:
        """Go on from the newest good checkpoint."""
        found = checkpoints.load(self.net, **self._parts(data))
        self.steps, self.epoch, self.history = found["step"], found["epoch"], found["history"]

    def _parts(self, data: Any) -> dict[str, Any]:
        parts = {"optimizer": self.optimizer, "scheduler": self.options.scheduler, "data": data}
        return {name: part for name, part in parts.items() if hasattr(part, "state_dict")}


def _as_it_is(net: nn.Module) -> nn.Module:
    return net
