"""Write what samples of mutants showed into the page of docs: a row a sample."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.judge import Verdict

PAGE = "docs/mutants.md"
BEGIN, END = "<!-- samples -->", "<!-- end of samples -->"


def row(area: str, seed: int, verdicts: Sequence[Verdict]) -> str:
    """Give a sample's row."""
    survivors = [one for one in verdicts if one.killed_by is None]
    killed = len(verdicts) - len(survivors)
    return f"| {area} | {seed} | {len(verdicts)} | {killed} | {killed * 100 // max(len(verdicts), 1)} % |"


def write_row(page: Path, area: str, seed: int, verdicts: Sequence[Verdict]) -> None:
    """Put a sample's row into the page's table, in the place of the same sample's earlier row."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    lines = [line for line in table.strip().split("\n") if not re.match(rf"\| {area} \| {seed} \|", line)]
    head, rows = lines[:2], [*lines[2:], row(area, seed, verdicts)]
    table = "\n".join([*head, *sorted(rows)])
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
