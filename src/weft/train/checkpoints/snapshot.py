"""A model and the other parts of training -> everything that goes into a checkpoint, at one moment."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import weft
from weft.errors import UsageError
from weft.train.checkpoints.canonical import canonical_names
from weft.train.checkpoints.durable_file import write_durably
from weft.train.checkpoints.optimizer_state import optimizer_state
from weft.train.checkpoints.random_states import random_states
from weft.train.checkpoints.tensor_bytes import to_blocks
from weft.train.checkpoints.tensor_file import Block, packed
from weft.train.checkpoints.told import Told, nobody
from weft.train.checkpoints.values import encode

VERSION = 1
MARK = "#"  # begins the names of tensors that are not the model's


@dataclass(frozen=True)
class Snapshot:
    """Everything that goes into a file, at one moment of training."""

    blocks: dict[str, Block]
    description: dict[str, Any]

    def detached(self) -> Snapshot:
        """Give one with memory of its own, for writing while training goes on."""
        blocks = {name: Block(block.dtype, block.shape, bytes(block.content)) for name, block in self.blocks.items()}
        return Snapshot(blocks, self.description)

    def write(self, path: Path, told: Told = nobody) -> None:
        """Write the file."""
        write_durably(path, packed(self.blocks, self.description), told)


def snapshot(net: nn.Module, random: bool | None, parts: Mapping[str, Any]) -> Snapshot:
    """Collect what goes into a file; the tensors are still the model's own."""
    if not isinstance(net, nn.Module):
        raise UsageError(f"save takes a module, not {type(net).__name__}", fix="weft.save(path, net, optimizer=...)")
    names = canonical_names(net)
    model = {names[key]: value for key, value in net.state_dict(keep_vars=True).items()}
    states = random_states() if (bool(parts) if random is None else random) else None
    return snapshot_of(model, {name: _state_of(part, net) for name, part in parts.items()}, states)


def snapshot_of(model: Mapping[str, Any], parts: Mapping[str, Any], random: Any) -> Snapshot:
    """Collect what goes into a file: a model's state by name, and plain values; the tensors are shared."""
    tensors: dict[str, torch.Tensor] = {}
    ties: dict[str, str] = {}
    extra: dict[str, Any] = {}
    owners: dict[tuple[Any, ...], str] = {}
    for name, value in model.items():
        if name.startswith(MARK):
            raise UsageError(f"the tensor {name} has a name that a checkpoint gives itself")
        if not isinstance(value, torch.Tensor):
            extra[name] = encode(value, f"{MARK}extra.{name}", tensors)
            continue
        owner = owners.setdefault(_identity(value), name)
        if owner == name:
            tensors[name] = value
        else:
            ties[name] = owner
    stored = {name: encode(part, MARK + name, tensors) for name, part in parts.items()}
    description = {
        "version": VERSION,
        "model": list(model),
        "ties": ties,
        "extra": extra,
        "parts": stored,
        "random": encode(random, f"{MARK}random", tensors),
        "made_by": {"weft": weft.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    blocks, pairs = to_blocks(tensors)
    return Snapshot(blocks, {**description, "pairs": pairs})


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are one; a tensor without memory is only itself."""
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return (id(tensor),)
    address = tensor.data_ptr() if type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer) else 0
    return (address or id(tensor), tensor.device, tensor.dtype, tensor.shape, tensor.stride())


def _state_of(part: Any, net: nn.Module) -> Any:
    if isinstance(part, torch.optim.Optimizer):
        return optimizer_state(part, net)
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, nn.Module):
        return {canonical_names(part)[key]: value for key, value in part.state_dict().items()}
    return part.state_dict() if hasattr(part, "state_dict") else part
