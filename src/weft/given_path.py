"""What somebody gives as a path -> a Path, or the error that says what a path is, and where none can be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.errors import UsageError
from weft.regular_file import FILE, FOLDER, what_is_there

LONGEST_NAME = 255  # bytes
SHOWN = 60  # letters of a path in an error that says that it is too long


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
    if not os.fspath(given):
        raise UsageError(f"{function} takes a path, not {given!r}", why="an empty text names nothing", fix=call)
    try:
        _check_names(path, function)
    except UnicodeEncodeError as error:
        raise UsageError(f"{function} takes a path, not {given!r}", why=f"it is no text: {error}", fix=call) from error
    return path


def _check_names(path: Path, function: str) -> None:
    """Refuse what no file can be called, and the shell's name of the home folder, which a program would create."""
    longest = max(path.parts, key=lambda part: len(os.fsencode(part)), default="")
    too_long = len(os.fsencode(longest)) > LONGEST_NAME
    if not too_long:
        try:
            path.lstat()
        except OSError as error:
            too_long = error.errno == errno.ENAMETOOLONG
    if too_long:
        length = f"it has a name of {len(os.fsencode(longest)):,} bytes, and {len(os.fsencode(path)):,} bytes in all"
        raise UsageError(
            f"{function}: the path {str(path)[:SHOWN]}... is too long", why=length, fix="give it a shorter name"
        )
    head = path.parts[0] if path.parts else ""
    if head.startswith("~") and (len(path.parts) > 1 or head == "~") and not os.path.lexists(head):
        raise UsageError(
            f"{function}: there is no folder {head}",
            why="only a shell reads it as the home folder",
            fix=f"pathlib.Path({str(path)!r}).expanduser()",
        )


def given_file(given: Any, function: str, call: str, endings: Sequence[str] = ()) -> Path:
    """Make the path of a file that will be written; with `endings`, only what is written to files that end so."""
    as_folder = isinstance(given, str) and (not given or given.endswith("/"))
    path = Path() if given == "" else given_path(given, function, call)
    if as_folder or not path.name or what_is_there(path) == FOLDER:
        raise UsageError(f"{function} writes a file, and {path} is a folder", fix=f"name a file in it: {call}")
    # A pipe or a device, such as /dev/stdout, has no ending.
    if endings and what_is_there(path) in (None, FILE) and path.suffix.lower() not in endings:
        listed = " or ".join(endings)
        ending = f"ends with {path.suffix}" if path.suffix else "has no ending"
        raise UsageError(f"{path} {ending}", why=f"{function} writes {listed}", fix=call)
    return path


def check_writable(path: Path, asked: str) -> None:
    """Raise where a file cannot be written, before the long work whose end writes it; `asked` is what asked for it."""
    folder = path.parent
    above, there = what_is_there(folder), what_is_there(path)
    if above is None:
        raise UsageError(f"{asked}: there is no folder {folder}", fix="make it first, or choose another path")
    if above != FOLDER:
        raise UsageError(f"{asked}: {folder} is no folder", fix="choose another path")
    if there == FOLDER:
        raise UsageError(f"{asked}: this is a folder", why="a file will be written", fix="name a file in it")
    if there not in (None, FILE):
        return  # a pipe or a device is written into
    # Most files are written beside their place and then moved there, so the folder decides.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{asked}: the folder {folder} may not be written", fix="choose another path")
