"""Data to test on -> the figures of an epoch: the share of right answers, the loss, or what the user measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from weft.devices import Device
from weft.train.evaluate import Measure, correct, sums_over
from weft.train.processes.peers import Peers
from weft.train.summed_loss import summed_loss

ACCURACY, LOSS = "test_acc", "test_loss"


@dataclass(frozen=True)
class Evaluation:
    """Tests a module after each epoch; with processes, each takes every so many batches, and only sums travel.

    Without metrics of the user's: the share of right answers where the targets are a label for each score, else the
    loss.
    """

    net: nn.Module
    places: Sequence[Device]
    loss_fn: Any
    metrics: Mapping[str, Measure] | None
    peers: Peers | None

    def of(self, test: Iterable[Any]) -> dict[str, float]:
        """Give the figures by name."""
        batches = test
        if self.peers is not None:
            batches = (batch for index, batch in enumerate(test) if index % self.peers.world == self.peers.rank)
        kinds = 4 if self.metrics is None else len(self.metrics)
        found, count = sums_over(self.net, batches, self.places, measure=self._sums)
        sums = torch.cat([found if count else torch.zeros(kinds, dtype=torch.float64), torch.tensor([float(count)])])
        *values, samples = (sums if self.peers is None else self.peers.sum(sums)).tolist()
        if self.metrics is not None:
            return {name: _ratio(value, samples) for name, value in zip(self.metrics, values, strict=True)}
        right, loss, counted, labelled = values
        return {ACCURACY: _ratio(right, samples)} if labelled or not samples else {LOSS: _ratio(loss, counted)}

    def _sums(self, answers: Any, y: Any) -> torch.Tensor:
        if self.metrics is not None:
            return _numbers([measure(answers, y) for measure in self.metrics.values()])
        if _labels(answers, y):
            return _numbers([correct(answers, y), 0.0, 0.0, 1.0])
        return _numbers([0.0, *summed_loss(self.loss_fn, answers, y), 0.0])


def _labels(answers: Any, y: Any) -> bool:
    """Whether each target is the number of a class, for which there is a score each."""
    tensors = isinstance(answers, torch.Tensor) and isinstance(y, torch.Tensor)
    return (
        tensors
        and not (y.is_floating_point() or y.is_complex())
        and answers.ndim >= 2
        and y.shape == answers.shape[:1] + answers.shape[2:]
    )


def _numbers(values: Sequence[Any]) -> torch.Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


def _ratio(value: float, count: float) -> float:
    return value / count if count else float("nan")
