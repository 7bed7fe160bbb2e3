"""Call the user between steps and epochs of training, to stop early, keep the best checkpoint, or write logs."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import math
import os
from collections.abc import Mapping
from typing import Any

from weft.errors import UsageError, counted
from weft.files import check_writable, given_file, given_path, write_atomically
from weft.train.checkpoints.checkpoint import Checkpoints


class Callback:
    """Called by `Trainer.fit`, on every process: override what is wanted. `trainer.stop()` ends training."""

    def at_start(self, trainer: Any) -> None:
        """Do something before the first batch of a `fit`."""

    def after_step(self, trainer: Any, loss: Any) -> None:
        """Do something after each batch; `loss` is that of the batch, a tensor."""

    def after_test(self, trainer: Any, figures: Mapping[str, float]) -> None:
        """Do something after a test inside an epoch (`fit(..., test_every=100)`); `figures` have the step too."""

    def after_epoch(self, trainer: Any, row: Mapping[str, float]) -> None:
        """Do something with an epoch's row of the history, which has the figures of the test at its end."""

    def at_end(self, trainer: Any) -> None:
        """Do something when `fit` ends, also by an error."""

    def state_dict(self) -> dict[str, Any]:
        """Give what a checkpoint keeps, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint kept."""

    def __repr__(self) -> str:
        shown = ((name, value) for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown)})"


class EarlyStop(Callback):
    """Ends training when a figure of the history has not become better for `patience` epochs."""

    def __init__(self, figure: str = "test_acc", patience: int = 3, *, larger: bool = True, by: float = 0.0) -> None:
        self.figure, self.patience, self.larger, self.by = figure, patience, larger, by
        self.best = -math.inf
        self.since = 0

    def after_epoch(self, trainer: Any, row: Mapping[str, float]) -> None:
        """Compare the epoch with the best one."""
        value = _figure(row, self.figure, larger=self.larger)
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


class BestCheckpoint(Callback):
    """Keeps the checkpoint at which a figure was best: `trainer.load(best.checkpoints)` goes back to it.

    Figures of tests inside an epoch count too, where there are such.
    """

    def __init__(self, folder: str | os.PathLike[str], figure: str = "test_acc", *, larger: bool = True) -> None:
        self.checkpoints = Checkpoints(given_path(folder, "BestCheckpoint", 'weft.BestCheckpoint("best")'), keep=1)
        self.figure, self.larger = figure, larger
        self.best = -math.inf

    def at_start(self, trainer: Any) -> None:
        """Make the folder: that it cannot be made is known before hours of training."""
        if trainer.peers is None or trainer.peers.rank == 0:
            self.checkpoints.make_folder()

    def after_test(self, trainer: Any, figures: Mapping[str, float]) -> None:
        """Save if a test inside an epoch is the best so far."""
        if self.figure in figures:
            self.after_epoch(trainer, figures)

    def after_epoch(self, trainer: Any, row: Mapping[str, float]) -> None:
        """Save if this is the best so far."""
        value = _figure(row, self.figure, larger=self.larger)
        if value > self.best:
            self.best = value
            trainer.save(self.checkpoints)

    def state_dict(self) -> dict[str, Any]:
        """Give the best value."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.best = state["best"]


class CSVLogger(Callback):
    """Writes the history to a file of comma-separated values, whole after every epoch; with processes, rank 0 does."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        call = 'weft.CSVLogger("history.csv")'
        self.path = given_file(path, "CSVLogger", call).absolute()
        check_writable(self.path, call)

    def after_epoch(self, trainer: Any, row: Mapping[str, float]) -> None:  # noqa: ARG002 - the history has it too
        """Write all epochs so far: figures that are new get a column, also of a run that was resumed."""
        if trainer.peers is not None and trainer.peers.rank:
            return
        rows = trainer.history
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for each in rows for name in each)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.path, [text.getvalue().encode()])


class TensorBoardLogger(Callback):
    """Writes losses of steps, one of every so many, and the figures of tests and epochs for TensorBoard."""

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 50) -> None:
        self.folder = given_path(folder, "TensorBoardLogger", 'weft.TensorBoardLogger("logs")')
        self.every = every
        self._writer: Any = None
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError("TensorBoardLogger needs the package tensorboard", fix="pip install tensorboard")

    def at_start(self, trainer: Any) -> None:
        """Begin a file in the folder."""
        if trainer.peers is None or trainer.peers.rank == 0:
            self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(self.folder))

    def after_step(self, trainer: Any, loss: Any) -> None:
        """Write the loss of a step whose turn it is."""
        if self._writer is not None and trainer.steps % self.every == 0:
            self._writer.add_scalar("step_loss", float(loss), trainer.steps)

    def after_test(self, trainer: Any, figures: Mapping[str, float]) -> None:
        """Write the figures of a test."""
        self.after_epoch(trainer, figures)

    def after_epoch(self, trainer: Any, row: Mapping[str, float]) -> None:
        """Write the figures of an epoch, at the step at which it ended."""
        if self._writer is not None:
            for name, value in row.items():
                if name not in ("epoch", "step"):
                    self._writer.add_scalar(name, value, trainer.steps)

    def at_end(self, trainer: Any) -> None:  # noqa: ARG002 - a callback's signature
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _figure(row: Mapping[str, float], name: str, *, larger: bool) -> float:
    """Give a figure so that more is better."""
    if name not in row:
        raise UsageError(f"the history has no {name!r}", why="it has " + ", ".join(row))
    return row[name] if larger else -row[name]
