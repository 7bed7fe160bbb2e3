"""The random number generators of this process <-> values that a checkpoint can hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from weft.errors import UsageError
from weft.train.checkpoints.values import MEANINGLESS


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
