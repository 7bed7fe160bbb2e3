"""`weft bench`: a model beside its rivals."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from weft.bench.comparison import compare, settings_text
from weft.bench.portrait import portrait
from weft.bench.settings import HYBRID, STEP, Settings
from weft.cli.outcome import CLAIM_FAILED, OK, UNSUPPORTED, Outcome
from weft.cli.progress import Progress
from weft.document import Document, Heading, Paragraph
from weft.report.environment import environment
from weft.report.page import page
from weft.whole_file import write_atomically


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    sizes = f", {given.input!r}" if given.input else ""
    settings = settings_text(_settings(given))
    imports = ["from weft.bench.comparison import compare"]
    call = f"compare({given.TARGET!r}{sizes})"
    if settings != "Settings()":
        imports.append("from weft.bench.settings import Settings")
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
        imports.insert(1, "from weft.bench.portrait import portrait")
        trace = f", trace=Path({given.trace!r})" if given.trace is not None else ""
        lines.append(f"shown = portrait(found{sizes}{trace})")
    if given.html is not None:
        imports.append("from weft.document import Document, Heading")
        imports.append("from weft.report.environment import environment")
        imports.append("from weft.report.page import page")
        lines.append("here = (Heading('This machine'), *environment().document().blocks)")
        lines.append(f"text = page({_title(given)!r}, Document((*shown.blocks, *here)))")
        lines.append(f"Path({given.html!r}).write_text(text, encoding='utf-8')")
    return "\n".join(["from pathlib import Path", "", *imports, "", *lines])


def run(given: Namespace, progress: Progress) -> Outcome:
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


def _settings(given: Namespace) -> Settings:
    return Settings(tuple(given.vs), given.threads or 0, given.warmup, given.runs)
