"""Compare the times of rivals, ratios taken round by round, as a table, sentences and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.console.bench.harness import Spread, ratios, spread
from weft.console.outcome import as_json
from weft.console.subject import EAGER
from weft.document.blocks import Block, Cell, Document, Heading, Paragraph, Picture, StyledText, Table, bar
from weft.document.charts import Axes, Bar, bars, curves
from weft.document.html import notebook
from weft.errors import counted

NOISY = 0.1
BAR = 18


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Rivals by name (none: all that are installed), threads for each (0: all cores), calls before, rounds."""

    against: tuple[str, ...] = ()
    threads: int = 0
    warmup: int = 10
    runs: int = 20


def error_of(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Give the largest relative RMS difference of any result; infinite where sizes, NaNs or infinities differ."""
    if len(found) != len(expected):
        return float("inf")
    return max((_error(one, other) for one, other in zip(found, expected, strict=True)), default=0.0)


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape or not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    difference = np.linalg.norm(found[finite] - expected[finite])
    size = np.linalg.norm(expected[finite])
    return float(difference / size) if size else (float("inf") if difference else 0.0)


def time_text(seconds: float) -> str:
    """Say a time with three digits."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


@dataclass(frozen=True, slots=True)
class RivalTimes:
    """One rival: seconds of a call in each round, of the first call, its error and whether that is small enough.

    `losses` are those of the first steps, where it trains.
    """

    name: str
    rounds: tuple[float, ...]
    first_call: float
    error: float
    agrees: bool
    losses: tuple[float, ...] = ()

    @property
    def time(self) -> Spread:
        """Give the median time of a call."""
        return spread(self.rounds)

    @property
    def noisy(self) -> bool:
        """Tell whether the middle half of the rounds lies further apart than a quiet machine's would."""
        return self.time.relative > NOISY


@dataclass(frozen=True, slots=True)
class BenchComparison:
    """What was measured on one target."""

    target: str
    threads: int
    entries: tuple[RivalTimes, ...]
    skipped: Mapping[str, str]

    @property
    def agrees(self) -> bool:
        """Tell whether all answers are right."""
        return all(entry.agrees for entry in self.entries)

    @property
    def noisy(self) -> bool:
        """Tell whether something else kept the machine busy."""
        return any(entry.noisy for entry in self.entries)

    @property
    def fastest(self) -> RivalTimes:
        """Give the fastest of those with a right answer."""
        able = [entry for entry in self.entries if entry.agrees] or list(self.entries)
        return min(able, key=lambda entry: entry.time.median)

    def ratio(self, slower: str, faster: str) -> Spread:
        """Say how many times faster one rival is than another, round by round."""
        rounds = {entry.name: entry.rounds for entry in self.entries}
        return ratios(rounds[slower], rounds[faster])

    def sentences(self) -> list[str]:
        """Compare the fastest with every other."""
        best = self.fastest
        found = []
        for entry in sorted(self.entries, key=lambda entry: entry.time.median):
            if entry is not best and entry.agrees:
                times = self.ratio(entry.name, best.name)
                by = f"{times.median:.2f} ± {times.half:.2f} times"
                even = times.median - times.half <= 1
                told = f"{best.name} and {entry.name} cannot be told apart ({by})"
                found.append(told if even else f"{best.name} ran {by} faster than {entry.name}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Give it as data, with all times."""
        entries = [
            {"median": entry.time.median, "spread": entry.time.half, **dataclasses.asdict(entry)}
            for entry in self.entries
        ]
        ratios = {
            entry.name: {"median": times.median, "half": times.half}
            for entry in self.entries
            if entry is not self.fastest
            for times in [self.ratio(entry.name, self.fastest.name)]
        }
        return {
            "target": self.target,
            "threads": self.threads,
            "results": entries,
            "fastest": self.fastest.name,
            "times_slower": ratios,
            "agree": self.agrees,
            "noisy": self.noisy,
            "skipped": dict(self.skipped),
        }

    def document(self) -> Document:
        """Give it to read."""
        slowest = max(entry.time.median for entry in self.entries)
        rows = tuple(self._row(entry, slowest) for entry in self.entries)
        columns = ("", "a call", "±", "first call", "answer", "")
        threads = f"{counted(self.threads, 'thread')}"
        blocks: list[Block] = [
            Heading(f"{self.target}, {threads}, median of {counted(len(self.entries[0].rounds), 'interleaved round')}"),
            Table(columns, rows, frozenset({1, 2, 3})),
            Paragraph("\n".join(self.sentences())),
        ]
        if self.skipped:
            listed = "\n".join(f"{name} did not run: {reason}" for name, reason in self.skipped.items())
            blocks.append(Paragraph(listed, "faint"))
        if self.noisy:
            told = "~ the rounds lie more than a tenth apart: something else uses this machine, so read with care"
            blocks.append(Paragraph(told, "bad"))
        return Document(tuple(blocks))

    def __str__(self) -> str:
        return str(self.document())

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        return notebook(Document((*self.pictures(), *self.document().blocks)))

    def pictures(self) -> list[Block]:
        """Draw how many times as fast as eager each is, and what was learned where they train."""
        rows = []
        for entry in self.entries:
            times = self.ratio(EAGER, entry.name)
            told = f"{times.median:.2f} ± {times.half:.2f}" + ("" if entry.agrees else ", differs")
            low, high = times.median - times.half, times.median + times.half
            rows.append(Bar(entry.name, times.median, low, high, told, entry is self.fastest))
        drawn: list[Block] = [Picture(bars(rows, "times as fast as eager; the thin line is the spread", 1.0))]
        curves_of = {entry.name: list(enumerate(entry.losses)) for entry in self.entries if entry.losses}
        if curves_of:
            axes = Axes(lambda x: f"step {x + 1:.0f}", lambda y: f"{y:.3g}")
            drawn.append(Picture(curves(curves_of, axes, "the loss of the first steps, all on one and the same batch")))
        return drawn

    def _row(self, entry: RivalTimes, slowest: float) -> tuple[Cell, ...]:
        time = entry.time
        tone = "good" if entry is self.fastest else "plain"
        return (
            entry.name,
            StyledText(time_text(time.median), "good" if entry is self.fastest else "plain"),
            f"{time.half / time.median:.0%}{'~' if entry.noisy else ''}",
            time_text(entry.first_call),
            StyledText("agrees", "plain") if entry.agrees else StyledText(f"differs by {entry.error:.1e}", "bad"),
            StyledText(bar(time.median / slowest, BAR), "good" if tone == "good" else "faint"),
        )

    def json(self) -> str:
        """Give it for programs, with all times."""
        return as_json("bench", self.as_dict())

    def markdown(self) -> str:
        """Give the table for an issue or a page."""
        lines = ["| rival | a call | spread | first call | answer |", "|---|---:|---:|---:|---|"]
        for entry in self.entries:
            cells = [str(cell.text if isinstance(cell, StyledText) else cell) for cell in self._row(entry, 1.0)[:5]]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", *(f"- {sentence}" for sentence in self.sentences()), ""])
