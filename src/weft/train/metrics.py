"""Add up values that come batch by batch, and draw them as curves that grow."""

from __future__ import annotations

import html
import importlib
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.files import check_writable, given_file, write_atomically

Numbers = float | Sequence[float | None]
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
WIDTH, HEIGHT, MARGIN = 420, 280, 48
TICKS = 5


class Accumulator:
    """Sums over several quantities: `metric.add(correct, total)`, then `metric[0] / metric[1]`.

    Tensors stay tensors, so adding one waits for nothing; reading does.
    """

    def __init__(self, count: int) -> None:
        self._sums: list[Any] = [0.0] * count

    def add(self, *values: Any) -> None:
        """Add a value to each sum."""
        self._sums = [
            total + (value.detach() if isinstance(value, torch.Tensor) else value)
            for total, value in zip(self._sums, values, strict=True)
        ]

    def reset(self) -> None:
        """Set every sum to zero."""
        self._sums = [0.0] * len(self._sums)

    def __getitem__(self, index: int) -> float:
        return float(self._sums[index])


@dataclass(frozen=True)
class PlotOptions:
    """How a plot looks: the ends of its axes, where they are fixed, and a file that is rewritten at each point."""

    xlim: Sequence[float] | None = None
    ylim: Sequence[float] | None = None
    path: str | Path | None = None


class Animator:
    """Curves that grow while training goes on: a picture in a notebook, lines in a terminal, an SVG file anywhere.

    `X` and `Y` hold the points, a list a curve.
    """

    def __init__(self, xlabel: str = "", ylabel: str = "", legend: Sequence[str] = (), **options: Any) -> None:
        self.xlabel = xlabel
        self.ylabel = ylabel
        self.legend = tuple(legend)
        self.options = PlotOptions(**options)
        self._file: Path | None = None
        if self.options.path is not None:
            file = given_file(self.options.path, "Animator", 'weft.Animator(path="curve.svg")')
            check_writable(file, f"Animator {file}")
            self._file = file.absolute()
        self.X: list[list[float]] = []
        self.Y: list[list[float]] = []
        self._display: Any = None

    def add(self, x: float, y: Numbers) -> None:
        """Add a point to each curve; None leaves one out."""
        values = list(y) if isinstance(y, Iterable) else [y]
        while len(self.X) < len(values):
            self.X.append([])
            self.Y.append([])
        for curve, value in enumerate(values):
            if value is not None:
                self.X[curve].append(float(x))
                self.Y[curve].append(float(value))
        self._show()

    def svg(self) -> str:
        """Give the picture as SVG."""
        (left, right), (bottom, top) = self._limits()
        across, up = (WIDTH - 2 * MARGIN) / (right - left), (HEIGHT - 2 * MARGIN) / (top - bottom)

        def place(x: float, y: float) -> str:
            return f"{MARGIN + (x - left) * across:.1f},{HEIGHT - MARGIN - (y - bottom) * up:.1f}"

        parts = [f'<path d="M{place(left, top)} L{place(left, bottom)} L{place(right, bottom)}" stroke="#888"/>']
        for tick in range(TICKS):
            x, y = (low + (high - low) * tick / (TICKS - 1) for low, high in ((left, right), (bottom, top)))
            parts.append(_text(place(x, bottom), f"{x:.3g}", "middle", (0, 16)))
            parts.append(_text(place(left, y), f"{y:.3g}", "end", (-6, 4)))
        parts.append(_text(f"{WIDTH / 2},{HEIGHT - 10}", self.xlabel, "middle"))
        parts.append(_text(f"{MARGIN},{MARGIN - 20}", self.ylabel, "start"))
        for curve, (xs, ys) in enumerate(zip(self.X, self.Y, strict=True)):
            color = COLORS[curve % len(COLORS)]
            points = " ".join(place(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y))
            parts.append(f'<polyline points="{points}" stroke="{color}" stroke-width="2"/>')
            if curve < len(self.legend):
                parts.append(_text(f"{WIDTH - MARGIN},{MARGIN + 16 * curve}", self.legend[curve], "end", fill=color))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
            f'font-size="11" fill="none">{"".join(parts)}</svg>'
        )

    def _repr_svg_(self) -> str:
        return self.svg()

    def _limits(self) -> tuple[Sequence[float], Sequence[float]]:
        xs = [x for curve in self.X for x in curve]
        ys = [y for curve in self.Y for y in curve if math.isfinite(y)]
        return _ends(self.options.xlim, xs), _ends(self.options.ylim, ys)

    def _show(self) -> None:
        if self._file is not None:
            self._write(self._file)
        if "ipykernel" in sys.modules:
            self._show_in_notebook()
        elif sys.stdout.isatty():
            names = [*self.legend, *(f"curve {index}" for index in range(len(self.legend), len(self.Y)))]
            values = "  ".join(f"{name} {ys[-1]:.4f}" for name, ys in zip(names, self.Y, strict=False) if ys)
            print(f"{self.xlabel or 'x'} {max(xs[-1] for xs in self.X if xs):g}  {values}")  # noqa: T201 - a display

    def _write(self, file: Path) -> None:
        write_atomically(file, [self.svg().encode("utf-8")])

    def _show_in_notebook(self) -> None:
        notebook: Any = importlib.import_module("IPython.display")  # only a notebook has it
        picture = notebook.SVG(self.svg())
        if self._display is None:
            self._display = notebook.display(picture, display_id=True)
        else:
            self._display.update(picture)


def _ends(given: Sequence[float] | None, values: Sequence[float]) -> tuple[float, float]:
    low, high = given or (min(values, default=0.0), max(values, default=1.0))
    return (low, high) if low < high else (low - 0.5, low + 0.5)


def _text(place: str, text: str, anchor: str, shift: tuple[int, int] = (0, 0), fill: str = "#333") -> str:
    x, y = (float(number) + step for number, step in zip(place.split(","), shift, strict=True))
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{html.escape(text)}</text>'
