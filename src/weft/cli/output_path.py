"""A path that a command is asked to write -> an error before hours of measuring, where it cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

from weft.errors import UsageError


def check_writable(option: str, name: str) -> None:
    """Raise where a file of this name cannot be written; nothing is written."""
    path = Path(name)
    folder = path.parent
    if not folder.exists():
        raise UsageError(f"{option} {name}: there is no folder {folder}", fix="make it first, or choose another path")
    if not folder.is_dir():
        raise UsageError(f"{option} {name}: {folder} is no folder", fix="choose another path")
    if path.is_dir():
        raise UsageError(f"{option} {name}: this is a folder", why="a file will be written", fix="name a file in it")
    # Files are written beside their place and then moved there, so the folder decides.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {name}: the folder {folder} may not be written", fix="choose another path")
