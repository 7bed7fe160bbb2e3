"""Put a model and the other parts of training into the content of a checkpoint, and take them out of it again."""

from __future__ import annotations

import json
import platform
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

import weft
from weft.api.optimizers.several import parts_of
from weft.document.blocks import Document, Paragraph, facts
from weft.document.html import notebook
from weft.errors import CheckpointError, UsageError, counted
from weft.ir.generator import generator_state
from weft.train.checkpoints.foreign_file import begins_foreign, begins_mxnet, read_foreign, read_mxnet
from weft.train.checkpoints.names import MatchReport, canonical_names
from weft.train.checkpoints.tensor_file import (
    TensorBytes,
    Told,
    file_error,
    nobody,
    opened,
    packed,
    read_tensors,
    to_blocks,
    to_tensors,
    write_durably,
)
from weft.train.checkpoints.values import MEANINGLESS, decode, encode


def random_states() -> dict[str, Any]:
    """Give the states of Python's, NumPy's and PyTorch's generators; of GPUs, where they are in use."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": generator_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = list(torch.cuda.get_rng_state_all())
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Put the generators into these states; a state that is none is a UsageError."""
    before = random_states()
    try:
        for name, state in states.items():
            SETTERS[name](state)
    except MEANINGLESS as error:
        for name, state in before.items():
            SETTERS[name](state)
        raise UsageError("its random states have no meaning", why=f"{type(error).__name__}: {error}") from error


def _set_cuda(states: list[torch.Tensor]) -> None:
    # A run may go on with fewer GPUs, or none: those that are there get their states.
    for index, state in enumerate(states[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, index)


SETTERS: dict[str, Callable[[Any], object]] = {
    "python": random.setstate,
    "numpy": np.random.set_state,
    "torch": torch.set_rng_state,
    "cuda": _set_cuda,
}


def optimizer_state(optimizer: torch.optim.Optimizer, net: nn.Module) -> dict[str, Any]:
    """Give the state with the model's names for parameters, so that wrappers and their order do not matter."""
    names = _names_by_number(optimizer, net)
    state = optimizer.state_dict()
    groups = [{key: value for key, value in group.items() if key != "param_names"} for group in state["param_groups"]]
    return {
        "class": _class_name(optimizer),
        "state": {names.get(key, key): value for key, value in state["state"].items()},
        "groups": [{**group, "params": [names[number] for number in group["params"]]} for group in groups],
    }


def numbered_state(stored: Any, optimizer: torch.optim.Optimizer, net: nn.Module) -> dict[str, Any]:
    """Give what `optimizer.load_state_dict` takes; UsageError if the stored state is of another optimizer."""
    if not isinstance(stored, dict) or stored.keys() != {"class", "state", "groups"}:
        raise UsageError("it is not the state of an optimizer")
    if stored["class"] != _class_name(optimizer):
        raise UsageError(f"it is the state of {stored['class']}, and this is {_class_name(optimizer)}")
    groups, current = stored["groups"], optimizer.state_dict()["param_groups"]
    if len(groups) != len(current):
        raise UsageError(f"it has {len(groups)} groups of parameters, and this optimizer has {len(current)}")
    names = _names_by_number(optimizer, net)
    numbers = {name: number for number, name in names.items()}
    for index, (group, own) in enumerate(zip(groups, current, strict=True)):
        _check_group(index, set(group["params"]), {names[number] for number in own["params"]})
    return {
        "state": {numbers.get(key, key): value for key, value in stored["state"].items()},
        "param_groups": [{**group, "params": own["params"]} for group, own in zip(groups, current, strict=True)],
    }


def is_numbered(stored: Any) -> bool:
    """Tell a state as PyTorch itself keeps it, with numbers for parameters: `torch.save` writes such."""
    return isinstance(stored, dict) and stored.keys() == {"state", "param_groups"}


def same_numbers(stored: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Give PyTorch's own state if it is of as many parameters, group by group; that they are the same it cannot say."""
    theirs = [len(group["params"]) for group in stored["param_groups"]]
    own = [len(group["params"]) for group in optimizer.param_groups]
    if theirs != own:
        raise UsageError(f"its groups have {theirs} parameters, and those of this optimizer {own}")
    found: dict[str, Any] = stored
    return found


def _check_group(index: int, stored: set[str], own: set[str]) -> None:
    if stored != own:
        raise UsageError(
            f"its group {index} is of other parameters than that of this optimizer",
            why=f"only in the file: {sorted(stored - own)[:5]}; only here: {sorted(own - stored)[:5]}",
        )


def _names_by_number(optimizer: torch.optim.Optimizer, net: nn.Module) -> dict[int, str]:
    """Name the parameters of an optimizer, which numbers them through all groups."""
    keys = canonical_names(net)
    known: dict[int, str] = {}
    for key, tensor in net.state_dict(keep_vars=True).items():
        known.setdefault(id(tensor), keys[key])
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # A parameter of no module has a place in the optimizer and no name.
    return {number: known.get(id(parameter), f"#{number}") for number, parameter in enumerate(parameters)}


def _class_name(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def random_states_text() -> str:
    """Give the states of this process's generators as a text, which can travel to the process that writes."""
    tensors: dict[str, torch.Tensor] = {}
    data = encode(random_states(), "random", tensors)
    lists = {name: [str(tensor.dtype).removeprefix("torch."), tensor.tolist()] for name, tensor in tensors.items()}
    return json.dumps([data, lists])


def set_random_states_text(text: str) -> None:
    """Put the generators into the states of a text."""
    data, lists = json.loads(text)
    tensors = {name: torch.tensor(values, dtype=getattr(torch, dtype)) for name, (dtype, values) in lists.items()}
    set_random_states(decode(data, tensors))


VERSION = 1
MARK = "#"  # begins the names of tensors that are not the model's


@dataclass(frozen=True)
class CheckpointContent:
    """Everything that goes into a file, at one moment of training."""

    blocks: dict[str, TensorBytes]
    description: dict[str, Any]

    def detached(self) -> CheckpointContent:
        """Give one with memory of its own, for writing while training goes on."""
        blocks = {
            name: TensorBytes(block.dtype, block.shape, bytes(block.content)) for name, block in self.blocks.items()
        }
        return CheckpointContent(blocks, self.description)

    def write(self, path: Path, told: Told = nobody) -> None:
        """Write the file."""
        write_durably(path, packed(self.blocks, self.description), told)


def snapshot(net: nn.Module, random: bool | None, parts: Mapping[str, Any]) -> CheckpointContent:
    """Collect what goes into a file; the tensors are still the model's own."""
    if not isinstance(net, nn.Module):
        raise UsageError(f"save takes a module, not {type(net).__name__}", fix="weft.save(path, net, optimizer=...)")
    names = canonical_names(net)
    model = {names[key]: value for key, value in net.state_dict(keep_vars=True).items()}
    states = random_states() if (bool(parts) if random is None else random) else None
    return snapshot_of(model, {name: _states_of(part, net) for name, part in parts.items()}, states)


def torch_content(net: nn.Module, parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give what goes into a file of torch.save: the model's state by name, and states of parts as PyTorch has them."""
    if not isinstance(net, nn.Module):
        raise UsageError(f"save takes a module, not {type(net).__name__}", fix="weft.save(path, net, optimizer=...)")
    names = canonical_names(net)
    model = {names[key]: value for key, value in net.state_dict().items()}
    return model, {name: _states_of(part) for name, part in parts.items()}


def snapshot_of(model: Mapping[str, Any], parts: Mapping[str, Any], random: Any) -> CheckpointContent:
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
    return CheckpointContent(blocks, {**description, "pairs": pairs})


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are one; a tensor without memory is only itself."""
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return (id(tensor),)
    address = tensor.data_ptr() if type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer) else 0
    return (address or id(tensor), tensor.device, tensor.dtype, tensor.shape, tensor.stride())


def members(part: Any) -> dict[Any, Any] | None:
    """What a row or table of objects with states holds, by place or key; None for anything else.

    Optimizers that make a step together are such a row.
    """
    held: Any = parts_of(part)
    if type(held) in (list, tuple):
        held = dict(enumerate(held))
    return held if type(held) is dict and any(map(_has_state, held.values())) else None


def _has_state(part: Any) -> bool:
    return isinstance(part, torch.Generator) or (hasattr(part, "state_dict") and not isinstance(part, type))


def _states_of(part: Any, net: nn.Module | None = None) -> Any:
    """The state of a part, or those of all that are in it; of optimizers as PyTorch has it where there is no model."""
    if (held := members(part)) is None:
        return _state_of(part, net)
    states = {key: _state_of(one, net) for key, one in held.items()}
    return states if isinstance(part, dict) else list(states.values())


def _state_of(part: Any, net: nn.Module | None) -> Any:
    if isinstance(part, torch.optim.Optimizer) and net is not None:
        return optimizer_state(part, net)
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, nn.Module):
        return {canonical_names(part)[key]: value for key, value in part.state_dict().items()}
    return part.state_dict() if hasattr(part, "state_dict") else part


def summary(tensors: Mapping[str, Any]) -> tuple[int, int]:
    """Count the tensors of a model and their elements, each once however many names it has."""
    own = {id(value): value for value in tensors.values() if isinstance(value, torch.Tensor)}
    return len(own), sum(value.numel() for value in own.values())


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """What a file holds: tensors of the model under their names, and the other parts; `checkpoint["epoch"]`."""

    path: Path
    tensors: dict[str, torch.Tensor]
    parts: dict[str, Any] = field(default_factory=dict)
    random: dict[str, Any] | None = None
    made_by: dict[str, str] = field(default_factory=dict)
    report: MatchReport | None = None  # how they went into the model, where one was given

    def document(self) -> Document:
        """Give to read what it holds, without the values."""
        tensors, elements = summary(self.tensors)
        rows = [
            ("checkpoint", str(self.path)),
            ("model", f"{counted(tensors, 'tensor')}, {elements:,} numbers"),
            ("besides", ", ".join([*sorted(self.parts), *(["random states"] if self.random is not None else [])])),
            ("made by", ", ".join(f"{name} {version}" for name, version in self.made_by.items())),
        ]
        told = [] if self.report is None or self.report.complete else [Paragraph(str(self.report))]
        return Document((facts(row for row in rows if row[1]), *told))

    def __repr__(self) -> str:
        return str(self.document())

    def _repr_html_(self) -> str:
        return notebook(self.document())

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
        if begins_mxnet(path, file):
            return Checkpoint(path, read_mxnet(path, file, verify=verify))
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
