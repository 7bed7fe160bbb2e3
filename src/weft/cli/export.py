"""`weft export`: a program as a C library."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path

from weft.api.export import export
from weft.cli.outcome import Outcome
from weft.cli.progress import Progress
from weft.cli.target import load_code, program_of
from weft.document import Document, Paragraph, facts
from weft.errors import UsageError
from weft.regular_file import FILE, what_is_there


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    return f"{load_code(given.TARGET, given.input)}\nprint(weft.export(program, {_folder(given)!r}))"


def run(given: Namespace, progress: Progress) -> Outcome:
    """Export a program."""
    folder = _folder(given)
    if what_is_there(Path(folder)) == FILE:
        raise UsageError(f"{folder} is a file", why="export writes a folder", fix="--to another name")
    progress.stage(f"reading {given.TARGET}")
    found = export(program_of(given.TARGET, given.input), folder)
    test = f"make -C {shlex.quote(folder)} test"
    verdict = (
        "compiled, called from C, and equal bit by bit"
        if found.checked
        else f"no C compiler is here: {test} links and compares it"
    )
    rows = facts([("folder", str(found.folder)), ("files", ", ".join(found.files)), ("checked", verdict)])
    data = {"folder": str(found.folder), "files": list(found.files), "checked": found.checked}
    return Outcome(Document((rows, Paragraph(f"try: {test}"))), data)


def _folder(given: Namespace) -> str:
    if given.to is None:
        raise UsageError("weft export needs a folder", fix="--to net")
    folder: str = given.to
    return folder
