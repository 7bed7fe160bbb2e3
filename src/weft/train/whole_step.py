"""A trainer whose devices are one machine's cores -> whole steps: forward, loss, backward and update in one program.

Virtual CPU devices with equal shares are lanes of one processor, and a program uses all lanes by itself. So the
gradient is that of the whole batch, nothing is copied and nothing summed afterwards; batch norm sees the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.api.steps.step import Step, step
from weft.train.devices.batch import samples_in
from weft.train.summed_loss import nothing_of, summed_loss


class WholeStep:
    """Runs steps of `weft.step` for a trainer."""

    def __init__(self, net: torch.nn.Module, optimizer: torch.optim.Optimizer, options: Any) -> None:
        self._net, self._optimizer, self._options = net, optimizer, options
        self._loss_fn: Any = None
        self._step: Step | None = None

    def __call__(self, loss_fn: Any, x: Any, y: Any) -> torch.Tensor:
        """Train on a batch, and give its mean loss."""
        if self._step is None or loss_fn is not self._loss_fn:
            self._loss_fn = loss_fn
            self._step = step(self._net, _mean_of(loss_fn), self._optimizer, clip_norm=self._options.clip_norm)
        loss: torch.Tensor = self._step(x, y)
        if self._options.scheduler is not None and self._options.schedule == "update":
            self._options.scheduler.step()
        return loss


def whole_step(trainer: Any) -> WholeStep | None:
    """Make whole steps for a trainer where they are the same as its steps on devices; None where not."""
    options = trainer.options
    possible = (
        options.hybridize
        and trainer.peers is None
        and options.shares == "equal"
        and options.accumulate == 1
        and options.scaler is None
        and options.autocast is None
        and (len(trainer.devices) == 1 or all(place.kind == "cpu" for place in trainer.devices))
    )
    return WholeStep(trainer.net, trainer.optimizer, options) if possible else None


def _mean_of(loss_fn: Any) -> Any:
    def mean(answers: Any, y: Any) -> torch.Tensor:
        if not samples_in(y, answers):
            return nothing_of(answers)  # a mean over no samples is no number, and would spread
        loss, count = summed_loss(loss_fn, answers, y)
        if isinstance(count, torch.Tensor):
            return loss / torch.where(count == 0, 1, count)
        return loss / (count or 1.0)

    return mean
