"""Show a comparison with pictures of its program, and write it to files: `weft bench`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

from weft.api.hybrids import program
from weft.console.bench.comparison import compare, settings_text
from weft.console.bench.result import BenchComparison, BenchSettings
from weft.console.outcome import CLAIM_FAILED, OK, UNSUPPORTED, Outcome
from weft.console.report.environment import environment
from weft.console.subject import HYBRID, STEP, load_subject
from weft.console.terminal import Progress
from weft.devices import cores, cpu_count
from weft.document.blocks import Block, Document, Heading, Paragraph, Table
from weft.document.html import page
from weft.errors import UnsupportedError
from weft.files import write_atomically
from weft.programs.picture import program_blocks
from weft.programs.program import Program


def compared_program(target: str, sizes: Sequence[str] = (), threads: int = 0) -> Program:
    """Make the program that `hybrid` or `step` runs, in this process, on so many threads (0: all cores)."""
    subject = load_subject(target, sizes)
    with torch.set_grad_enabled(subject.trains), cores(threads or cpu_count()):
        return program(subject.thing, *subject.inputs)


def portrait(found: BenchComparison, sizes: Sequence[str] = (), trace: Path | None = None) -> Document:
    """Give what was found, as a summary, pictures and tables, with the program's; `trace` gets the call's timeline."""
    first, *rest = found.document().blocks
    blocks: list[Block] = [first, *found.pictures(), *map(_without_bars, rest)]
    return Document((*blocks, *_program(found, sizes, trace)))


def _without_bars(block: Block) -> Block:
    """Leave out the bars made of letters, which a terminal needs and a page draws."""
    if not isinstance(block, Table):
        return block
    return Table(block.columns[:-1], tuple(row[:-1] for row in block.rows), block.right)


def _program(found: BenchComparison, sizes: Sequence[str], trace: Path | None) -> list[Block]:
    try:
        made = compared_program(found.target, sizes, found.threads)
    except UnsupportedError as error:
        return [Heading("The program"), Paragraph(f"There is none: {error}", "bad")]
    with cores(found.threads):
        timeline = made.timeline(trace)
    return [Heading("The program"), Paragraph(made.summary()), *program_blocks(made.plan.regions, timeline)]


def bench_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    sizes = f", {given.input!r}" if given.input else ""
    settings = settings_text(_settings(given))
    imports = ["from weft.console.bench.comparison import compare"]
    call = f"compare({given.TARGET!r}{sizes})"
    if settings != "BenchSettings()":
        imports.append("from weft.console.bench.result import BenchSettings")
        call = f"compare({given.TARGET!r}{sizes}, settings={settings})"
    written = (given.export_json, given.export_markdown, given.html, given.trace)
    if not any(written):
        return "\n".join([*imports, "", f"print({call})"])
    lines = [f"found = {call}", "print(found)"]
    if given.export_json is not None:
        lines.append(f"Path({given.export_json!r}).write_text(found.json() + '\\n', encoding='utf-8')")
    if given.export_markdown is not None:
        lines.append(f"Path({given.export_markdown!r}).write_text(found.markdown(), encoding='utf-8')")
    if given.html is not None or given.trace is not None:
        imports.insert(1, "from weft.console.bench.portrait import portrait")
        trace = f", trace=Path({given.trace!r})" if given.trace is not None else ""
        lines.append(f"shown = portrait(found{sizes}{trace})")
    if given.html is not None:
        imports.append("from weft.document.blocks import Document, Heading")
        imports.append("from weft.console.report.environment import environment")
        imports.append("from weft.document.html import page")
        lines.append("here = (Heading('This machine'), *environment().document().blocks)")
        lines.append(f"text = page({_title(given)!r}, Document((*shown.blocks, *here)))")
        lines.append(f"Path({given.html!r}).write_text(text, encoding='utf-8')")
    return "\n".join(["from pathlib import Path", "", *imports, "", *lines])


def bench_run(given: Namespace, progress: Progress) -> Outcome:
    """Measure, and write what is asked for."""
    found = compare(given.TARGET, given.input, _settings(given), progress.say)
    if given.export_json is not None:
        write_atomically(Path(given.export_json), [found.json().encode("utf-8"), b"\n"])
    if given.export_markdown is not None:
        write_atomically(Path(given.export_markdown), [found.markdown().encode("utf-8")])
    if given.html is not None or given.trace is not None:
        progress.say("looking at one call")
        shown = portrait(found, given.input, None if given.trace is None else Path(given.trace))
        if given.html is not None:
            here = (Heading("This machine"), *environment().document().blocks)
            text = page(_title(given), Document((*shown.blocks, *here)))
            write_atomically(Path(given.html), [text.encode("utf-8")])
    ran = any(entry.name in (HYBRID, STEP) for entry in found.entries)
    if ran:
        return Outcome(found.document(), found.as_dict(), OK if found.agrees else CLAIM_FAILED)
    asked = Paragraph(f"try: weft doctor {' '.join([given.TARGET, *(f'--input {each}' for each in given.input)])}")
    return Outcome(Document((*found.document().blocks, asked)), found.as_dict(), UNSUPPORTED)


def _title(given: Namespace) -> str:
    return f"{given.TARGET} beside its rivals"


def _settings(given: Namespace) -> BenchSettings:
    return BenchSettings(tuple(given.vs), given.threads or 0, given.warmup, given.runs)
