"""`weft show`: a program as text, or as a picture."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from weft.cli.outcome import Outcome
from weft.cli.progress import Progress
from weft.cli.target import load_code, program_of
from weft.errors import UsageError
from weft.report.stages import stage_text
from weft.whole_file import write_atomically

PICTURE, ENDING = "draw", ".svg"


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    loading = load_code(given.TARGET, given.input)
    if given.stage == PICTURE:
        return f"{loading}\nprogram.draw({given.output!r})"
    imports, text = "from weft.report.stages import stage_text\n", f"stage_text(program, {given.stage!r})"
    if given.output is None:
        return f"{imports}{loading}\nprint({text})"
    return (
        f"from pathlib import Path\n\n{imports}{loading}\n"
        f"Path({given.output!r}).write_text({text} + '\\n', encoding='utf-8')"
    )


def run(given: Namespace, progress: Progress) -> Outcome:
    """Show a stage, or write it to a file."""
    if given.stage == PICTURE and given.output is None:
        raise UsageError("a picture needs a file", fix="--output net.svg")
    if given.stage == PICTURE and Path(given.output).suffix != ENDING:
        raise UsageError(f"{given.output} does not end with {ENDING}", why="the picture is SVG", fix="--output net.svg")
    progress.stage(f"reading {given.TARGET}")
    program = program_of(given.TARGET, given.input)
    progress.stage(f"writing the stage {given.stage}")
    data = {"target": given.TARGET, "stage": given.stage, "graph": program.graph.name}
    if given.stage == PICTURE:
        program.draw(given.output)
        return Outcome(f"written: {given.output}", {**data, "written": given.output})
    text = stage_text(program, given.stage)
    if given.output is None:
        return Outcome(text, {**data, "text": text})
    write_atomically(Path(given.output), [text.encode("utf-8"), b"\n"])
    return Outcome(f"written: {given.output}", {**data, "written": given.output})
