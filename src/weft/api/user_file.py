"""Run a Python file of the user's, and say what goes wrong in it with its own line."""

from __future__ import annotations

import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from weft.errors import UsageError, source_line
from weft.files import FILE, missing_file, what_is_there
from weft.owners import Owner, owner_of

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LONGEST = 200


def run_file(path: Path) -> dict[str, Any]:
    """Run a Python file as a module of its own; its folder is looked in for what it imports."""
    if what_is_there(path) != FILE:
        raise missing_file(path, [".py"])
    folder_name = str(path.parent.resolve())
    if folder_name not in sys.path:
        sys.path.insert(0, folder_name)
    # Under a name that nothing else has, and found by it: dataclasses and pickle look their module up.
    module = types.ModuleType(f"weft_subject_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path} does not run: {one_line(error)}",
            where=place_in(error, str(path)),
            why="a target's file is run to get at its names",
            fix=f"make `python {path}` work; put what belongs to a script under `if __name__ == '__main__':`",
        ) from error
    return module.__dict__


def one_line(error: BaseException) -> str:
    """Say an exception on one line, without the colours that some exporters write."""
    lines = [line.strip() for line in COLOURS.sub("", str(error)).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def place_in(error: BaseException, filename: str | None = None) -> str | None:
    """Name the innermost line of a file on the way to an error; without a file, of any that is no package."""
    if isinstance(error, SyntaxError) and error.filename:
        return source_line(error.filename, error.lineno or 1)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [
        frame
        for frame in frames
        if (frame.filename == filename if filename else owner_of(frame.filename) is Owner.USER)
    ]
    return source_line(mine[-1].filename, mine[-1].lineno or 1) if mine else None
