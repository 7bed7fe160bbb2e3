"""Record the epochs of a training run: their sums, their rows of figures, and the line that tells how far one is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.document.blocks import Document, Picture, Table
from weft.document.charts import Axes, curves
from weft.document.html import notebook
from weft.train.metrics import Animator

QUIET = 2.0  # seconds that an epoch may take without a word
OFTEN = 0.2  # seconds between two rewritings
ERASE = "\r\033[K"
CURVES = ("loss", "test_acc")
MOST_ROWS, FIRST_ROWS = 20, 4  # of a table: a screen has no more


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


class FitProgress:
    """Tells how far an epoch is; `total` batches, if that is known, `done` of them earlier."""

    def __init__(self, epoch: int, total: int | None, say: Callable[[str], None] | None, done: int = 0) -> None:
        self._epoch, self._total, self._say = epoch, total, say
        self._before = done  # batches of the epoch that were trained on before, in a run that was stopped
        self._start = self._told = time.monotonic()
        self._tenth = done * 10 // total if total else 0
        self._live = say is print and sys.stdout.isatty()
        self._shown = False

    def after_batch(self, done: int, loss: Any) -> None:
        """Tell after a batch, if it is time to; only then is the loss looked at."""
        now = time.monotonic()
        if self._say is None or now - self._start < QUIET:
            return
        if self._live:
            if now - self._told >= OFTEN:
                self._told, self._shown = now, True
                sys.stdout.write(ERASE + self._line(done, loss, now))
                sys.stdout.flush()
            return
        tenth = done * 10 // self._total if self._total else 0
        if tenth > self._tenth and done < (self._total or 0):
            self._tenth = tenth
            self._say(self._line(done, loss, now))

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stdout.write(ERASE)
            sys.stdout.flush()

    def _line(self, done: int, loss: Any, now: float) -> str:
        of = f"/{self._total} ({100 * done // self._total} %)" if self._total else ""
        rate = (done - self._before) / (now - self._start)
        return f"epoch {self._epoch}: batch {done}{of}, loss {float(loss):.4g}, {rate:.3g} batches/s"


class History(list[dict[str, float]]):
    """The epochs of a training run: a list of rows, each with its epoch, loss, seconds, and what else was measured."""

    def curves(self) -> Animator:
        """Give loss and accuracy as curves over epochs."""
        names = [name for name in CURVES if self and name in self[-1]]
        animator = Animator("epoch", legend=names)
        for name in names:  # not by `add`, which would show each point
            rows = [row for row in self if name in row]
            animator.X.append([row["epoch"] for row in rows])
            animator.Y.append([row[name] for row in rows])
        return animator

    def document(self) -> Document:
        """Give it to read: a row an epoch, of many the first and the last ones, and on a page the curves."""
        names = tuple(dict.fromkeys(name for row in self for name in row))
        rows = tuple(tuple(f"{row[name]:.4g}" if name in row else "" for name in names) for row in self)
        if len(rows) > MOST_ROWS:
            between = ("...",) * len(names)
            rows = (*rows[:FIRST_ROWS], between, *rows[FIRST_ROWS - MOST_ROWS + 1 :])
        table = Table(names, rows, frozenset(range(len(names))))
        series = {name: [(row["epoch"], row[name]) for row in self if name in row] for name in CURVES}
        axes = Axes(lambda x: f"{x:.0f}", lambda y: f"{y:.3g}", "epoch")
        # Each in a picture of its own: a loss and an accuracy have no common scale.
        drawn = [Picture(curves({name: points}, axes, name)) for name, points in series.items() if len(points) > 1]
        return Document((table, *drawn))

    def __repr__(self) -> str:
        return str(self) if self else "weft.History: no epoch yet"

    def __str__(self) -> str:
        return str(self.document())

    def _repr_html_(self) -> str:
        return notebook(self.document())


def line_of(row: dict[str, float]) -> str:
    """Say one epoch in a line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items())
