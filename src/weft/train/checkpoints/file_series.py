"""Keep the newest few of numbered files in a folder; `latest` names the last one that was written whole."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from weft.errors import CheckpointError, UsageError
from weft.files import FOLDER, open_regular, what_is_there
from weft.train.checkpoints.tensor_file import write_durably

LATEST = "latest"
NAME = re.compile(r"step-(\d{10,})\.safetensors", re.ASCII)
LONGEST_POINTER = 200
LARGEST_STEP = 10**18 - 1
MOST_LISTINGS = 100  # of a folder whose files go while they are looked at
TICK = 20_000_000  # nanoseconds: what happens to a folder within so many may have one time

logger = logging.getLogger("weft")


def checked_step(step: Any) -> int:
    """Give the number of a step; what cannot stand in a file's name, and be found there again, is a UsageError."""
    number = _whole(step, "step", "the number of a step stands in the name of its file")
    if not 0 <= number <= LARGEST_STEP:
        raise UsageError(
            f"step is {'below 0' if number < 0 else f'above {LARGEST_STEP}'}",
            why="steps are counted from 0, and a file's name has room for 18 digits",
            fix="checkpoints.save(net, 7, optimizer=optimizer)",
        )
    return number


def _whole(given: Any, name: str, why: str) -> int:
    kind = type(given)
    if isinstance(given, bool) or getattr(given, "dtype", None) is torch.bool or not hasattr(kind, "__index__"):
        raise UsageError(f"{name} is {given!r}, a {kind.__name__}", why=why)
    try:
        return operator.index(given)
    except (TypeError, ValueError) as error:  # a tensor or an array of several elements, or of others than integers
        raise UsageError(f"{name} is no whole number: {error}", why=why) from error


class FileSeries:
    """The files of a folder that are named after steps; `keep=None` keeps all of them."""

    def __init__(self, folder: Path, keep: int | None) -> None:
        if keep is not None:
            keep = _whole(keep, "keep", "how many files stay is a whole number, or None for all")
            if keep < 1:
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
            raise CheckpointError(
                f"the folder {self.folder} cannot be made",
                why=error.strerror or str(error),
                fix="choose another folder, or move away what has its name",
            ) from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise CheckpointError(f"the folder {self.folder} may not be written", fix="choose another folder")

    def write(self, step: int, pieces: Sequence[bytes | bytearray | memoryview]) -> Path:
        """Write the file of a step, then the pointer to it; only then do the oldest files go."""
        path = self.path(step)
        self.make_folder()
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
            with open_regular(self.folder / LATEST) as file:
                return file.read(LONGEST_POINTER).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _by_age(self) -> list[Path]:
        return [path for _, path in self._aged()]

    def _aged(self) -> list[tuple[tuple[int, str], Path]]:
        """List the files with their ages, the oldest first."""
        if what_is_there(self.folder) != FOLDER:
            return []
        found: list[tuple[tuple[int, str], Path]] = []
        try:
            for _ in range(MOST_LISTINGS):
                changed = self.folder.stat().st_mtime_ns
                found = self._listed()
                # A folder is read name by name: of files that come and go meanwhile, none may be among the names.
                if found or (self.folder.stat().st_mtime_ns == changed and time.time_ns() - changed > TICK):
                    break
        except OSError as error:
            raise CheckpointError(f"the folder {self.folder} cannot be read", why=error.strerror) from error
        return sorted(found)

    def _listed(self) -> list[tuple[tuple[int, str], Path]]:
        found: list[tuple[tuple[int, str], Path]] = []
        for path in self.folder.iterdir():
            # Another process may drop a file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if NAME.fullmatch(path.name) and stat.S_ISREG((status := path.stat()).st_mode):
                    found.append(((status.st_mtime_ns, path.name), path))
        return found

    def _drop_oldest(self, written: Path) -> None:
        """Remove what is beyond `keep`, and never what is newer than the file just written.

        Somebody else wrote that one: of several writers each would remove the others' newest files, until none is left.
        """
        if self.keep is None:
            return
        files = self._aged()
        own = next((age for age, path in files if path == written), None)
        beyond = len(files) - self.keep
        for age, path in files[: max(0, beyond)]:
            if own is None or age >= own:
                return
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # a folder has its name, or it is another user's
                logger.warning("weft: the old checkpoint %s stays: %s", path, error.strerror)
