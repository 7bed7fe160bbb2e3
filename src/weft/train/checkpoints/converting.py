"""Convert a checkpoint file to another format, verified after it was written, and clean the folder of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.errors import CheckpointError, UsageError
from weft.files import FILE, FOLDER, sweep_orphans, what_is_there
from weft.params_file import PARAMS_ENDING
from weft.train.checkpoints.content import Checkpoint, snapshot_of
from weft.train.checkpoints.examining import content_of, good_and_damaged
from weft.train.checkpoints.foreign_file import TORCH_ENDINGS, write_mxnet, write_torch
from weft.train.checkpoints.names import WRAPPED, without_wrappers
from weft.train.checkpoints.tensor_file import Told, nobody

OURS = (".safetensors",)
ENDINGS = (*OURS, *TORCH_ENDINGS, PARAMS_ENDING)


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written: how many tensors, which names lost their wrapper, and what the new format has no place for."""

    path: Path
    tensors: int
    renamed: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What went and what stays: files of killed writers, older checkpoints; the good and the damaged ones."""

    orphans: tuple[Path, ...]
    removed: tuple[Path, ...]
    kept: tuple[Path, ...]
    damaged: tuple[Path, ...]


def convert(source: Path, target: Path, told: Told = nobody, *, force: bool = False) -> Converted:
    """Write a file's model, and what else it holds, to a file of the kind that the target's ending names.

    A file that is there already is written over only by `force`.
    """
    if target.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"{target} ends with {target.suffix or 'nothing'}",
            why=f"the kind of file is told by its ending: one of {', '.join(ENDINGS)}",
        )
    there, was = what_is_there(target), what_is_there(source)
    if there == FOLDER:
        raise UsageError(f"{target} is a folder", why="a file will be written", fix="name a file in it with --to")
    if there == FILE and was == FILE and target.samefile(source):
        raise UsageError("a file cannot be converted into itself", fix="give another name with --to")
    if there == FILE and not force:
        raise UsageError(
            f"{target} is there already", why="it would be written over", fix="another name, or --force (force=True)"
        )
    found = content_of(source, told)
    model, renamed = _canonical(found.tensors)
    if target.suffix.lower() in OURS:
        snapshot_of(model, found.parts, found.random).write(target, told)
        left_out: tuple[str, ...] = ()
    elif target.suffix.lower() == PARAMS_ENDING:
        write_mxnet(target, model, told)
        left_out = (*found.parts, *(("random states",) if found.random is not None else ()))
    else:
        write_torch(target, model, found.parts, told)
        left_out = ("random states",) if found.random is not None else ()
    _check(content_of(target, told), model)
    return Converted(target, len(model), renamed, left_out)


def clean(folder: Path, keep: int | None, told: Told = nobody) -> Cleaned:
    """Remove what killed processes left, and all but the newest good checkpoints; damaged ones are named and stay."""
    good, damaged = good_and_damaged(folder, told)
    orphans = sweep_orphans(folder)
    removed = good[keep:] if keep is not None else []
    for path in removed:
        path.unlink(missing_ok=True)
    return Cleaned(tuple(orphans), tuple(removed), tuple(good[:keep]), tuple(damaged))


def _canonical(tensors: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Take wrappers out of the names where the names themselves show that all of the model was in one."""
    heads = {name.partition(".")[0] for name in tensors}
    names = [without_wrappers(name) for name in tensors]
    if len(heads) != 1 or not heads <= WRAPPED or len(set(names)) < len(names):
        return tensors, 0
    return dict(zip(names, tensors.values(), strict=True)), len(names)


def _check(written: Checkpoint, model: dict[str, Any]) -> None:
    """Compare what was written, byte for byte, with what was meant."""
    for name, value in model.items():
        if isinstance(value, torch.Tensor) and not _same_bytes(value, written.tensors.get(name)):
            raise CheckpointError(f"{written.path} was written, but {name} in it is not as it was")


def _same_bytes(value: torch.Tensor, other: Any) -> bool:
    if not isinstance(other, torch.Tensor) or (value.dtype, value.shape) != (other.dtype, other.shape):
        return False
    first, second = value.contiguous(), other.contiguous()
    return torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8))
