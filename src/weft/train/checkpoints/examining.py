"""Examine checkpoint files of anybody: what is in them, whether they are sound, how two of them differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.errors import CheckpointError, UsageError
from weft.files import FILE, FOLDER, missing_file, what_is_there
from weft.train.checkpoints.content import Checkpoint, read
from weft.train.checkpoints.file_series import FileSeries
from weft.train.checkpoints.foreign_file import is_foreign, is_mxnet
from weft.train.checkpoints.names import MatchReport, match
from weft.train.checkpoints.tensor_file import SUFFIXES, NoChecksumError, NotTensorsError, Told, nobody, to_blocks
from weft.train.checkpoints.values import encode

SOUND, UNCHECKED, UNREAD, DAMAGED = "sound", "no checksum", "not read", "damaged"


@dataclass(frozen=True, slots=True)
class Examined:
    """A file and what was found of it: sound, damaged, no checksum or not read; and what it holds, if it was read."""

    path: Path
    state: str
    problem: str | None
    content: Checkpoint | None

    @property
    def kind(self) -> str:
        """Say who wrote such files."""
        if is_foreign(self.path):
            return "torch.save"
        if is_mxnet(self.path):
            return "MXNet"
        if self.content is None and self.path.suffix != ".safetensors":
            return "unknown"
        return "Weft" if self.content is not None and self.content.made_by else "safetensors"

    @property
    def size(self) -> int:
        """Give the length of the file in bytes."""
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class ChangedTensor:
    """A tensor whose values differ between two files: by how much at most, and relative to its own size (RMS)."""

    name: str
    largest: float
    relative: float


@dataclass(frozen=True, slots=True)
class FileDifference:
    """Two files compared: which names fit, and which tensors of one name differ."""

    report: MatchReport
    equal: int
    changed: tuple[ChangedTensor, ...]

    @property
    def same(self) -> bool:
        """Whether both hold the same model."""
        return self.report.complete and not self.changed


def examine(path: Path, told: Told = nobody) -> Examined:
    """Read a file, verified where it carries a checksum; a damaged one is a result, one that is not there an error."""
    if what_is_there(path) == FOLDER:
        raise UsageError(f"{path} is a folder", why="one file is asked for", fix="name a file in it")
    if what_is_there(path) != FILE:
        raise missing_file(path, SUFFIXES)
    try:
        return Examined(path, SOUND, None, read(path, told=told))
    except NoChecksumError as unchecked:
        try:
            return Examined(path, UNCHECKED, _problem(unchecked), read(path, verify=False, told=told))
        except CheckpointError as error:
            return _unreadable(path, error)
    except CheckpointError as error:
        return _unreadable(path, error)


def _unreadable(path: Path, error: CheckpointError) -> Examined:
    """Tell what is damaged from what is another thing than a checkpoint."""
    if isinstance(error, NotTensorsError):
        return Examined(path, UNREAD, f"{_problem(error)}: {error.why}" if error.why else _problem(error), None)
    return Examined(path, DAMAGED, error.why or _problem(error), None)


def _problem(error: CheckpointError) -> str:
    """Give the fact without the name of the file, which is said beside it."""
    return error.fact.partition(" cannot be loaded: ")[2] or error.fact


def content_of(path: Path, told: Told = nobody) -> Checkpoint:
    """Give what a file holds; a damaged one is its CheckpointError."""
    found = examine(path, told)
    return found.content if found.content is not None else read(path)


def files_of(places: list[Path]) -> list[Path]:
    """List files, and of folders the files in them that look like checkpoints, in order."""
    found: list[Path] = []
    for place in places:
        there = what_is_there(place)
        if there == FOLDER:
            found += sorted(
                path for path in place.rglob("*") if path.suffix in SUFFIXES and what_is_there(path) == FILE
            )
        elif there == FILE:
            found.append(place)
        else:
            raise missing_file(place, SUFFIXES, "file or folder")
    if not found:
        raise UsageError(
            f"there is no checkpoint in {', '.join(map(str, places))}", why="looked for " + ", ".join(SUFFIXES)
        )
    return found


def difference(first: Path, second: Path, told: Told = nobody) -> FileDifference:
    """Compare two files tensor by tensor, under whatever wrappers they were saved."""
    old, new = content_of(first, told).tensors, content_of(second, told).tensors
    pairs, report = match(old, new, (str(first), str(second)))
    changed = [found for name, source in pairs.items() if (found := _changed(name, old[source], new[name]))]
    return FileDifference(report, len(pairs) - len(changed), tuple(changed))


def _changed(name: str, old: Any, new: Any) -> ChangedTensor | None:
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return None if _as_stored(old) == _as_stored(new) else ChangedTensor(name, float("nan"), float("nan"))
    if old.dtype == new.dtype and torch.equal(old, new):
        return None
    wide = torch.complex128 if old.dtype.is_complex else torch.float64
    before, after = old.to(wide), new.to(wide)
    apart = torch.where((before == after) | (before.isnan() & after.isnan()), 0.0, (before - after).abs())
    if not apart.numel() or not bool((apart != 0).any()):
        return None
    size = before.abs().square().mean().sqrt().item()
    rms = apart.square().mean().sqrt().item()
    return ChangedTensor(name, apart.max().item(), rms / size if size else float("inf"))


def _as_stored(value: Any) -> tuple[str, list[tuple[str, bytes]]]:
    """Give what a file would hold of a value: of values that share what they hold, each thing once."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(encode(value, "", tensors))
    return text, [(name, bytes(block.content)) for name, block in to_blocks(tensors)[0].items()]


def good_and_damaged(folder: Path, told: Told = nobody) -> tuple[list[Path], list[Path]]:
    """Sort the checkpoints of a training run, newest first, into those that are sound and those that are not."""
    if what_is_there(folder) != FOLDER:
        raise UsageError(f"{folder} is no folder", why="clean takes the folder of weft.Checkpoints")
    files = FileSeries(folder, None).newest_first()
    states = {path: examine(path, told).state for path in files}
    return [path for path in files if states[path] == SOUND], [path for path in files if states[path] != SOUND]
