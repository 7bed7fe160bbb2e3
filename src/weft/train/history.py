"""Rows of figures, one an epoch -> a list that a notebook shows as a table with curves."""

from __future__ import annotations

import html
from typing import Any

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

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self for name in row))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{_shown(row.get(name))}</td>" for name in names) + "</tr>" for row in self
        )
        picture = self.curves().svg() if self else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{picture}"


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"


def line_of(row: dict[str, float]) -> str:
    """Say one epoch in a line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items())
