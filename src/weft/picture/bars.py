"""Figures with their spread -> a bar each, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from weft.picture.style import COLOURS, picture


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure: its name, itself, between what it lies, how it is said, and whether it is the one to look at."""

    label: str
    value: float
    low: float
    high: float
    told: str
    marked: bool = False


def bars(rows: Sequence[Bar], caption: str = "", mark: float | None = None) -> str:
    """Draw bars from zero; `mark` is where a dashed line stands in all of them."""
    most = max((max(row.high, row.value) for row in rows), default=1.0) or 1.0
    return picture(f'<div class="wp-bars">{"".join(_row(row, most, mark) for row in rows)}</div>', caption)


def _row(row: Bar, most: float, mark: float | None) -> str:
    fill = COLOURS[2] if row.marked else COLOURS[0]
    width, low, high = (100 * max(value, 0.0) / most for value in (row.value, row.low, row.high))
    spread = f'<span class="wp-spread" style="left:{low:.1f}%;width:{max(high - low, 0.3):.1f}%"></span>'
    line = "" if mark is None else f'<span class="wp-one" style="left:{100 * mark / most:.1f}%"></span>'
    return (
        f'<span class="wp-label">{escape(row.label)}</span>'
        f'<span class="wp-told">{escape(row.told)}</span>'
        f'<span class="wp-track"><span class="wp-fill" style="width:{width:.1f}%;background:{fill}"></span>'
        f"{spread}{line}</span>"
    )
