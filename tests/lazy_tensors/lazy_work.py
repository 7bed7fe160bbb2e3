"""Lazy code that changes a tensor in place and uses it, as a compiled program: what tests let fail half-way."""

from collections.abc import Callable

import torch

import weft


def compiled_work(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Give code that adds to a tensor and doubles it; it has run three times, so its program is compiled."""

    def work() -> torch.Tensor:
        x.add_(1)
        return x * 2

    for _ in range(3):
        with weft.lazy():
            weft.wait(work())
    return work
