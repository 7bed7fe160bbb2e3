"""What somebody gives as a path -> a Path, or the error that says what a path is, and where none can be written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.errors import UsageError


def given_path(given: Any, function: str, call: str) -> Path:
    """Make a path of what `function` is given; `call` is how it is written."""
    try:
        path = Path(given)
    except TypeError as error:
        raise UsageError(
            f"{function} takes a path, not {type(given).__name__}", why="a path is a str or a pathlib.Path", fix=call
        ) from error
    if "\0" in str(path):
        raise UsageError(f"{function} takes a path, not {given!r}", why="no path has a zero character in it", fix=call)
    return path


def given_file(given: Any, function: str, call: str, endings: Sequence[str] = ()) -> Path:
    """Make the path of a file that will be written; with `endings`, only what is written to files that end so."""
    path = given_path(given, function, call)
    if not path.name or path.is_dir():
        raise UsageError(f"{function} writes a file, and {path} is a folder", fix=f"name a file in it: {call}")
    # A pipe or a device, such as /dev/stdout, has no ending.
    if endings and (path.is_file() or not path.exists()) and path.suffix.lower() not in endings:
        listed = " or ".join(endings)
        ending = f"ends with {path.suffix}" if path.suffix else "has no ending"
        raise UsageError(f"{path} {ending}", why=f"{function} writes {listed}", fix=call)
    return path


def check_writable(path: Path, asked: str) -> None:
    """Raise where a file cannot be written, before the long work whose end writes it; `asked` is what asked for it."""
    folder = path.parent
    if not folder.exists():
        raise UsageError(f"{asked}: there is no folder {folder}", fix="make it first, or choose another path")
    if not folder.is_dir():
        raise UsageError(f"{asked}: {folder} is no folder", fix="choose another path")
    if path.is_dir():
        raise UsageError(f"{asked}: this is a folder", why="a file will be written", fix="name a file in it")
    if path.exists() and not path.is_file():
        return  # a pipe or a device is written into
    # Most files are written beside their place and then moved there, so the folder decides.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{asked}: the folder {folder} may not be written", fix="choose another path")
