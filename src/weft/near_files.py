"""A path where no file is -> the error that names what lies near it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from weft.errors import UsageError

LISTED = 5


def missing_file(path: Path, endings: Sequence[str], kind: str = "file") -> UsageError:
    """Make the error: the file that was meant, if one has such a name, else which of its kind are there."""
    folder = path.parent
    if path.is_dir():
        return UsageError(f"{path} is a folder", why="a file is asked for", fix="name a file in it")
    if not folder.is_dir():
        return UsageError(f"there is no {kind} {path}", why=f"there is no folder {folder}")
    near = sorted(each.name for each in folder.iterdir() if each.suffix in endings and each.is_file())
    stems = {Path(name).stem: name for name in near}  # the same ending would make every name like every other
    close = difflib.get_close_matches(path.stem, stems, n=1)
    if close:
        return UsageError(f"there is no {kind} {path}", fix=f"did you mean {folder / stems[close[0]]}?")
    place = "this folder" if folder == Path() else str(folder)
    kinds = " or ".join(endings)
    if not near:
        return UsageError(f"there is no {kind} {path}", why=f"{place} has no {kinds} file")
    more = f" and {len(near) - LISTED} more" if len(near) > LISTED else ""
    return UsageError(f"there is no {kind} {path}", why=f"{place} has {', '.join(near[:LISTED])}{more}")
