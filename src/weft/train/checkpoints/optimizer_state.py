"""An optimizer's state by the names of parameters in the model <-> the numbered one that PyTorch has."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weft.errors import UsageError
from weft.train.checkpoints.canonical import canonical_names


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
