"""A comparison and the program that was compared -> a document with pictures: what a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from weft.api.hybrid import program
from weft.api.programs.picture import program_blocks
from weft.api.programs.program import Program
from weft.bench.result import Comparison
from weft.bench.subject import load_subject
from weft.devices import cores, cpu_count
from weft.document import Block, Document, Heading, Paragraph, Table
from weft.errors import UnsupportedError


def compared_program(target: str, sizes: Sequence[str] = (), threads: int = 0) -> Program:
    """Make the program that `hybrid` or `step` runs, in this process, on so many threads (0: all cores)."""
    subject = load_subject(target, sizes)
    with torch.set_grad_enabled(subject.trains), cores(threads or cpu_count()):
        return program(subject.thing, *subject.inputs)


def portrait(found: Comparison, sizes: Sequence[str] = (), trace: Path | None = None) -> Document:
    """Give what was found, as a summary, pictures and tables, with the program's; `trace` gets the call's timeline."""
    first, *rest = found.document().blocks
    blocks: list[Block] = [first, *found.pictures(), *map(_without_bars, rest)]
    return Document((*blocks, *_program(found, sizes, trace)))


def _without_bars(block: Block) -> Block:
    """Leave out the bars made of letters, which a terminal needs and a page draws."""
    if not isinstance(block, Table):
        return block
    return Table(block.columns[:-1], tuple(row[:-1] for row in block.rows), block.right)


def _program(found: Comparison, sizes: Sequence[str], trace: Path | None) -> list[Block]:
    try:
        made = compared_program(found.target, sizes, found.threads)
    except UnsupportedError as error:
        return [Heading("The program"), Paragraph(f"There is none: {error}", "bad")]
    with cores(found.threads):
        timeline = made.timeline(trace)
    return [Heading("The program"), Paragraph(made.summary()), *program_blocks(made.plan.regions, timeline)]
