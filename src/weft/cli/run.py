"""`weft run`: a saved program, run."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from weft.cli.outcome import Outcome
from weft.cli.progress import Progress
from weft.cli.target import load
from weft.document import Document, Paragraph
from weft.report.running import run_program, save_results


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    files = f", {given.input!r}" if given.input else ""
    call = f"run_program(weft.load_program({given.FILE!r}){files})"
    imports = "from pathlib import Path\n\nimport weft\nfrom weft.report.running import run_program, save_results\n"
    if given.output is None:
        return f"import weft\nfrom weft.report.running import run_program\n\nprint({call})"
    return f"{imports}\nran = {call}\nprint(ran)\nsave_results(ran, Path({given.output!r}))"


def run(given: Namespace, progress: Progress) -> Outcome:
    """Run a program, and keep its results where that is asked for."""
    progress.stage(f"reading {given.FILE}")
    program = load(given.FILE)
    progress.stage(f"running {given.FILE}")
    ran = run_program(program, given.input)
    document, data = ran.document(), ran.as_dict()
    if given.output is None:
        return Outcome(document, data)
    progress.stage(f"writing {given.output}")
    written = [str(path) for path in save_results(ran, Path(given.output))]
    document = Document((*document.blocks, Paragraph("written: " + ", ".join(written))))
    return Outcome(document, {**data, "written": written})
