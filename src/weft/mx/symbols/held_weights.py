"""Run predictions with weights that did not change for some calls as those of a module, whose program packs them once.

Arrays are given to programs as inputs, which may be others at each call: products then read them as they lie, and
convolutions pack them each time. While a network is trained that is right. Weights that came as the same tensors for a
few calls are held; a write to a part of one shows by its version, a write of the whole by another tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from weft.api.hybrid import ModuleForward

CALLS = 3  # with the same weights, after which they are held
FEWEST_BYTES = 1 << 20  # of weights: fewer are read as soon as packed


class _Forward(ModuleForward):
    """Runs a module's programs. It is traced by a task, while the user's thread draws random numbers and seeds them."""

    draws = False


class _Module(nn.Module):
    """A function of tensors, of which some are buffers."""

    def __init__(self, function: Callable[..., Any], places: Sequence[int], count: int) -> None:
        super().__init__()
        self._function = function
        self._places = {place: f"weight{place}" for place in places}
        self._count = count

    def hold(self, weights: Sequence[Tensor]) -> None:
        """Let the buffers be these."""
        for name, weight in zip(self._places.values(), weights, strict=True):
            self.register_buffer(name, weight)

    def forward(self, *inputs: Tensor) -> Any:
        """Call the function with inputs and buffers in their places."""
        others = iter(inputs)
        return self._function(
            *[
                getattr(self, self._places[place]) if place in self._places else next(others)
                for place in range(self._count)
            ]
        )


class HeldWeights:
    """A function of tensors whose weights, those of one device, are held while they stay the same."""

    def __init__(self, function: Callable[..., Any], places: Sequence[int], count: int) -> None:
        self._module = _Module(function, places, count).eval()
        self._program = _Forward(self._module)
        self._places = list(places)
        self._others = [place for place in range(count) if place not in set(places)]
        self._weights: list[Tensor] = []  # those that came last, and for how many calls
        self._calls = 0
        # On the other side: another task that runs with these weights; it runs with inputs instead, and never waits.
        self._lock = threading.Lock()

    @property
    def are_held(self) -> bool:
        """Whether the last call ran with weights that are held."""
        return self._calls > CALLS

    def run(self, given: Sequence[Tensor]) -> Any:
        """What the function gives with weights that are held; None if they are not."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            weights = [given[place] for place in self._places]
            known = self._weights
            if len(known) != len(weights) or any(old is not new for old, new in zip(known, weights, strict=True)):
                self._weights, self._calls = weights, 0
            self._calls += 1
            if self._calls <= CALLS:
                return None
            if self._calls == CALLS + 1:
                self._module.hold(weights)
            return self._program(*[given[place] for place in self._others])
        finally:
            self._lock.release()


def are_worth_holding(weights: Sequence[Tensor]) -> bool:
    """Whether weights are large enough."""
    return sum(weight.numel() * weight.element_size() for weight in weights) >= FEWEST_BYTES
