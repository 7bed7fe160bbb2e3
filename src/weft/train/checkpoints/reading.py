"""A file -> the checkpoint in it, verified; nothing is done with it yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from weft.errors import CheckpointError, UsageError
from weft.train.checkpoints.foreign_file import begins_foreign, read_foreign
from weft.train.checkpoints.matching import MatchReport
from weft.train.checkpoints.snapshot import VERSION
from weft.train.checkpoints.tensor_bytes import to_tensors
from weft.train.checkpoints.tensor_file import file_error, opened, read_tensors
from weft.train.checkpoints.told import Told, nobody
from weft.train.checkpoints.values import MEANINGLESS, decode


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: tensors of the model under their names, and the other parts; `checkpoint["epoch"]`."""

    path: Path
    tensors: dict[str, torch.Tensor]
    parts: dict[str, Any] = field(default_factory=dict)
    random: dict[str, Any] | None = None
    made_by: dict[str, str] = field(default_factory=dict)
    report: MatchReport | None = None  # how they went into the model, where one was given

    def __getitem__(self, name: str) -> Any:
        if name not in self.parts:
            raise file_error(
                self.path,
                f"it holds no {name}",
                why=f"besides the model it holds {', '.join(self.parts) or 'nothing'}",
                fix=f"name it when saving: weft.save(path, net, {name}=...)",
            )
        return self.parts[name]


def read(path: Path, *, verify: bool = True, told: Told = nobody) -> Checkpoint:
    """Read and verify a file; makes nothing of it yet."""
    with opened(path) as file:
        if begins_foreign(file):
            return Checkpoint(path, *read_foreign(path, file, verify=verify, told=told))
        content = read_tensors(path, file, verify=verify, told=told)
    try:
        return _checkpoint(path, content.description, to_tensors(content.blocks, content.description.get("pairs", {})))
    except UsageError as error:
        raise file_error(path, error.fact, why=error.why) from error
    except MEANINGLESS as error:
        if isinstance(error, CheckpointError):
            raise
        raise file_error(path, "its description has no meaning", why=f"{type(error).__name__}: {error}") from error


def _checkpoint(path: Path, description: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Checkpoint:
    if not description:  # another tool's safetensors file, read with verify=False
        return Checkpoint(path, tensors)
    if description["version"] != VERSION:
        raise UsageError(f"its format has version {description['version']}; this Weft reads version {VERSION}")
    ties, extra = description["ties"], description["extra"]
    model: dict[str, Any] = {}
    for name in description["model"]:
        model[name] = decode(extra[name], tensors) if name in extra else tensors[ties.get(name, name)]
    return Checkpoint(
        path,
        model,
        {name: decode(data, tensors) for name, data in description["parts"].items()},
        decode(description["random"], tensors),
        {str(name): str(text) for name, text in description["made_by"].items()},
    )
