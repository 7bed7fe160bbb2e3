"""The losses of an epoch's batches -> their mean, also of an epoch in whose middle a run was stopped and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class EpochSums:
    """What an epoch has come to so far: the sum of its samples' losses, its samples, its batches."""

    loss: Any = 0.0  # a tensor, which is looked at only when it is needed
    samples: int = 0
    batches: int = 0

    def add(self, loss: Any, samples: int) -> None:
        """Take in a batch by its mean loss."""
        self.loss += loss * samples
        self.samples += samples
        self.batches += 1

    def mean(self) -> float:
        """Give the mean loss of a sample."""
        return float(self.loss) / self.samples if self.samples else float("nan")

    def state(self) -> list[float]:
        """Give what a checkpoint keeps."""
        return [float(self.loss), self.samples, self.batches]

    @classmethod
    def of(cls, state: Sequence[Any]) -> EpochSums:
        """Take up what a checkpoint kept."""
        return cls(*state)
