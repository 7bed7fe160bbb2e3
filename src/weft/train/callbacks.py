"""Call the user between steps and epochs of training; early stopping is one such callback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.errors import UsageError, counted


class Callback:
    """Called by `Trainer.fit`, on every process: override what is wanted. `trainer.stop()` ends training."""

    def after_step(self, trainer: Any, loss: Any) -> None:
        """Do something after each batch; `loss` is its mean loss, a tensor."""

    def after_epoch(self, trainer: Any, row: Mapping[str, float]) -> None:
        """Do something with an epoch's row of the history."""

    def state_dict(self) -> dict[str, Any]:
        """Give what a checkpoint keeps, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint kept."""


class EarlyStop(Callback):
    """Ends training when a figure of the history has not become better for `patience` epochs."""

    def __init__(self, figure: str = "test_acc", patience: int = 3, *, larger: bool = True, by: float = 0.0) -> None:
        self.figure, self.patience, self.larger, self.by = figure, patience, larger, by
        self.best = -math.inf
        self.since = 0

    def after_epoch(self, trainer: Any, row: Mapping[str, float]) -> None:
        """Compare the epoch with the best one."""
        if self.figure not in row:
            raise UsageError(f"the history has no {self.figure!r}", why="it has " + ", ".join(row))
        value = row[self.figure] if self.larger else -row[self.figure]
        if value > self.best + self.by:
            self.best, self.since = value, 0
            return
        self.since += 1
        if self.since >= self.patience:
            trainer.stop(f"{self.figure} has not become better for {counted(self.since, 'epoch')}")

    def state_dict(self) -> dict[str, Any]:
        """Give the best value and how long it has stood."""
        return {"best": self.best, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.best, self.since = state["best"], state["since"]
