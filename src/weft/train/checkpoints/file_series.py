"""Numbered files in one folder: the newest few are kept, and `latest` names the last one that was written whole."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from weft.errors import CheckpointError, UsageError
from weft.train.checkpoints.durable_file import sweep_orphans, write_durably

LATEST = "latest"
NAME = re.compile(r"step-(\d{10,})\.safetensors", re.ASCII)
LONGEST_POINTER = 200


class FileSeries:
    """The files of a folder that are named after steps; `keep=None` keeps all of them."""

    def __init__(self, folder: Path, keep: int | None) -> None:
        if keep is not None and keep < 1:
            raise UsageError(f"keep is {keep}", why="at least the newest checkpoint is kept")
        self.folder = folder
        self.keep = keep

    def path(self, step: int) -> Path:
        """Give the file of a step."""
        return self.folder / f"step-{step:010d}.safetensors"

    def make_folder(self) -> None:
        """Make the folder where it is not there: whoever will write tells now that nobody can."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"the folder {self.folder} cannot be made", why=error.strerror) from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise CheckpointError(f"the folder {self.folder} may not be written", fix="choose another folder")

    def write(self, step: int, pieces: Sequence[bytes | bytearray | memoryview]) -> Path:
        """Write the file of a step, then the pointer to it; only then do the oldest files go."""
        path = self.path(step)
        self.make_folder()
        sweep_orphans(self.folder)
        write_durably(path, pieces)
        write_durably(self.folder / LATEST, [f"{path.name}\n".encode()])
        self._drop_oldest(path)
        return path

    def newest_first(self) -> list[Path]:
        """List the files in the order in which they are worth reading: what `latest` names, then by age."""
        files = self._by_age()[::-1]
        named = self._named()
        return sorted(files, key=lambda path: path.name != named)

    def _named(self) -> str:
        """Give the name in `latest`; none if it is missing or damaged, as the files' ages tell the same."""
        try:
            with (self.folder / LATEST).open("rb") as file:
                return file.read(LONGEST_POINTER).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _by_age(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        found: list[tuple[int, str, Path]] = []
        for path in self.folder.iterdir():
            # Another process may drop a file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if NAME.fullmatch(path.name):
                    found.append((path.stat().st_mtime_ns, path.name, path))
        return [path for _, _, path in sorted(found)]

    def _drop_oldest(self, written: Path) -> None:
        if self.keep is None:
            return
        others = [path for path in self._by_age() if path != written]
        for path in others[: max(0, len(others) - self.keep + 1)]:
            path.unlink(missing_ok=True)
