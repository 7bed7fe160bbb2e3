"""A path where no file is -> the error that names what lies near it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from weft.errors import UsageError
from weft.regular_file import FILE, FOLDER, what_is_there

LISTED = 5


def missing_file(path: Path, endings: Sequence[str], kind: str = "file") -> UsageError:
    """Make the error: the file that was meant, if one has such a name, else which of its kind are there."""
    there = what_is_there(path)
    if there == FOLDER:
        return UsageError(f"{path} is a folder", why="a file is asked for", fix="name a file in it")
    if there not in (None, FILE):
        return UsageError(f"{path} is {there}", why="a file is asked for", fix="write what it gives to a file first")
    why, fix = what_is_near(path, endings)
    return UsageError(f"there is no {kind} {path}", why=why, fix=fix)


def what_is_near(path: Path, endings: Sequence[str]) -> tuple[str | None, str | None]:
    """Say, for an error, why there is no such file or which one was meant: one of the two."""
    folder = path.parent
    if what_is_there(folder) != FOLDER:
        return f"there is no folder {folder}", None
    try:
        near = sorted(each.name for each in folder.iterdir() if each.suffix in endings and what_is_there(each) == FILE)
    except OSError as error:
        return f"the folder {folder} cannot be read: {error.strerror}", None
    stems = {Path(name).stem: name for name in near}  # the same ending would make every name like every other
    close = difflib.get_close_matches(path.stem, stems, n=1)
    if close:
        return None, f"did you mean {folder / stems[close[0]]}?"
    place = "this folder" if folder == Path() else str(folder)
    kinds = " or ".join(endings)
    if not near:
        return f"{place} has no {kinds} file", None
    more = f" and {len(near) - LISTED} more" if len(near) > LISTED else ""
    return f"{place} has {', '.join(near[:LISTED])}{more}", None
