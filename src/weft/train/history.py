"""Rows of figures, one an epoch -> a list that a notebook shows as a table with curves."""

from __future__ import annotations

from weft.document.blocks import Document, Picture, Table
from weft.document.charts import Axes, curves
from weft.document.html import notebook
from weft.train.metrics import Animator

CURVES = ("loss", "test_acc")


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
        """Give it to read: a row an epoch, and on a page the curves."""
        names = tuple(dict.fromkeys(name for row in self for name in row))
        rows = tuple(tuple(f"{row[name]:.4g}" if name in row else "" for name in names) for row in self)
        table = Table(names, rows, frozenset(range(len(names))))
        series = {name: [(row["epoch"], row[name]) for row in self if name in row] for name in CURVES}
        axes = Axes(lambda x: f"{x:.0f}", lambda y: f"{y:.3g}", "epoch")
        # Each in a picture of its own: a loss and an accuracy have no common scale.
        drawn = [Picture(curves({name: points}, axes, name)) for name, points in series.items() if len(points) > 1]
        return Document((table, *drawn))

    def __str__(self) -> str:
        return str(self.document())

    def _repr_html_(self) -> str:
        return notebook(self.document())


def line_of(row: dict[str, float]) -> str:
    """Say one epoch in a line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items())
