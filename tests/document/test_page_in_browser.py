"""A report in a real browser: no error on the console, and nothing wider than a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.browser import console, widths
from tests.console.bench.test_comparison import FOUND, TRAINED
from tests.programs.test_program_picture import program

from weft.console.report.environment import environment
from weft.document.blocks import Code, Document, Heading
from weft.document.html import page
from weft.programs.picture import program_blocks


@pytest.mark.slow
def test_a_report_is_quiet_and_fits_a_phone(tmp_path: Path) -> None:
    with torch.no_grad():
        made = program()
    blocks = (*FOUND.pictures(), *TRAINED.pictures(), *FOUND.document().blocks)
    more = (*program_blocks(made.plan.regions, made.timeline()), Heading("Code"), Code("x = " + "1 + " * 60))
    text = page("net.py:net beside its rivals", Document((*blocks, *more, *environment().document().blocks)))
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    for width in (360, 1200):
        assert console(path, tmp_path, width) == []
        assert widths(path, tmp_path, width) == f"{width} of {width}"
