"""Find parameters and buffers of lazy modules that no call has materialised yet.

`nn.LazyLinear` and its relatives make their parameters in a hook of the first call, from the sizes of what comes in.
That call runs as Python says: it changes the module, its class and the random stream as eager PyTorch does, and gives
eager's result. Programs are traced from the next call on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from weft.errors import UsageError
from weft.trace.state import State


class UnmaterialisedError(UsageError):
    """A program is asked for of a module whose first call has not been made yet."""


def unmaterialised(thing: Any) -> bool:
    """Whether a thing is a tensor whose sizes the first call decides."""
    return isinstance(thing, torch.Tensor) and bool(is_lazy(thing))


def refuse_unmaterialised(name: str) -> UnmaterialisedError:
    """The error for a program of such a module; whoever may run the call imperatively does so instead."""
    return UnmaterialisedError(
        f"{name} has parameters that are not materialised yet",
        why="the first call makes the parameters of lazy modules (nn.LazyLinear, ...), by the sizes of what comes in",
        fix="call it once before, as you would without Weft",
    )


def waits_for_sizes(state: State) -> bool:
    """Whether a first call would materialise parameters or buffers of modules."""
    return any(unmaterialised(slot.get()) for slot in state.slots.values())
