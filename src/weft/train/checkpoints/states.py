"""Give the states of optimizers and of random number generators as values, and take them up again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from weft.errors import UsageError
from weft.train.checkpoints.names import canonical_names
from weft.train.checkpoints.values import MEANINGLESS, decode, encode


def random_states() -> dict[str, Any]:
    """Give the states of Python's, NumPy's and PyTorch's generators; of GPUs, where they are in use."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
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
