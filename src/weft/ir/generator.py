"""Read where the CPU's default generator stands, whatever other threads do.

PyTorch's own `get_rng_state` keeps the generator's lock, and the interpreter, while it makes a Python tensor. That may
start Python's garbage collection, and whatever this runs (a finalizer, a callback) may let another thread have the
interpreter: one that reads or sets the state as well then waits for the lock, and does not give the interpreter back.
A copy of the generator is made under the lock without a garbage collection; no other thread knows the copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def generator_state() -> torch.Tensor:
    """Give the state of the CPU's default generator, as torch.get_rng_state() does."""
    return torch.default_generator.clone_state().get_state()


def swap_generator_state(state: torch.Tensor) -> torch.Tensor:
    """Set the state of the CPU's default generator, and give the one before; hardly any thread draws in between."""
    before = torch.default_generator.clone_state()
    torch.default_generator.set_state(state)
    return before.get_state()


@contextmanager
def generator_put_back() -> Iterator[None]:
    """Let the CPU's default generator stand behind the block where it stood before, as torch.random.fork_rng does."""
    before = generator_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)
