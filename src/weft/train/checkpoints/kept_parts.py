"""Keep a part of training as it is, so that it can be put back where what is restored was refused halfway.

Each function gives one that puts back. What restoring writes into is copied; what it replaces is only remembered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from weft.train.checkpoints.random_states import random_states, set_random_states
from weft.train.checkpoints.values import MEANINGLESS

PutBack = Callable[[], object]


def kept_module(module: nn.Module) -> PutBack:
    """Keep a module: its tensors and their values, its children, its attributes and its extra state."""
    parts = list(module.modules())
    tables = [vars(part) for part in parts]
    tables += [table for part in parts for table in (part._parameters, part._buffers, part._modules)]
    before = [(table, dict(table)) for table in tables]
    extra = [(part, copied(part.get_extra_state())) for part in parts if _has_extra_state(part)]
    values = [_kept_tensor(tensor) for tensor in (*module.parameters(), *module.buffers())]

    def put_back() -> None:
        _put_back(before)
        for value in values:
            value()
        for part, state in extra:
            part.set_extra_state(state)

    return put_back


def kept_optimizer(optimizer: torch.optim.Optimizer) -> PutBack:
    """Keep an optimizer: restoring gives it another table of state and other groups, and leaves those it had."""
    tables: list[dict[Any, Any]] = [vars(optimizer), optimizer.state, *optimizer.state.values()]
    before = [(table, dict(table)) for table in [*tables, *optimizer.param_groups]]
    groups, content = optimizer.param_groups, list(optimizer.param_groups)

    def put_back() -> None:
        _put_back(before)
        groups[:] = content

    return put_back


def kept_object(part: Any) -> PutBack:
    """Keep anything that gives and takes a state: its attributes, and a copy of its state for what lies deeper."""
    attributes: dict[str, Any] = getattr(part, "__dict__", {})
    tables = [attributes, *(value for value in attributes.values() if type(value) is dict)]
    before = [(table, dict(table)) for table in tables]
    lists = [(value, list(value)) for value in attributes.values() if type(value) is list]
    try:
        state, gave = copied(part.state_dict()), True
    except MEANINGLESS:  # it has none before it is given one
        state, gave = None, False

    def put_back() -> None:
        try:
            if gave:
                part.load_state_dict(state)
        finally:
            _put_back(before)
            for held, content in lists:
                held[:] = content

    return put_back


def kept_generator(generator: torch.Generator) -> PutBack:
    """Keep a generator of random numbers."""
    state = generator.get_state()
    return lambda: generator.set_state(state)


def kept_random_states() -> PutBack:
    """Keep the generators of this process."""
    states = random_states()
    return lambda: set_random_states(states)


def copied(value: Any) -> Any:
    """Copy a state: tensors, which may be in a graph, by their values."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return copy.deepcopy(value)


def _put_back(before: list[tuple[dict[Any, Any], dict[Any, Any]]]) -> None:
    for held, content in before:
        if held.keys() != content.keys() or any(held[key] is not value for key, value in content.items()):
            held.clear()
            held.update(content)


def _kept_tensor(tensor: torch.Tensor) -> PutBack:
    kind = type(tensor)
    if is_lazy(tensor):

        def without_size() -> None:
            if type(tensor) is not kind:
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                tensor.__class__ = kind  # type: ignore[assignment]  # as PyTorch does in the other direction

        return without_size
    data, value = tensor.data, tensor.detach().clone()

    def put_back() -> None:
        with torch.no_grad():
            if not _equal(data, value):
                data.copy_(value)
            if tensor.shape != data.shape or tensor.data_ptr() != data.data_ptr():
                tensor.data = data

    return put_back


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and torch.equal(tensor, other)


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state
