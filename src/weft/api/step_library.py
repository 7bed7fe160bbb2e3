"""An optimizer without a rule of Weft's -> its own step by PyTorch, undone if it fails."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer computes the loss itself, perhaps several times a step, as LBFGS does."""
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def by_library(
    optimizer: torch.optim.Optimizer, buffers: Iterable[torch.Tensor], differentiate: Callable[[], Any]
) -> Any:
    """Let `differentiate` compute losses and gradients and PyTorch update; gives the first losses.

    If anything fails, parameters, buffers and what the optimizer keeps are as they were.
    """
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    before = Snapshot((*parameters, *buffers))
    kept = {parameter: copy.deepcopy(entry) for parameter, entry in optimizer.state.items()}
    losses: list[Any] = []

    def closure() -> Any:
        losses.append(differentiate())
        return total(losses[-1])

    try:
        if needs_closure(optimizer):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    except BaseException:
        before.restore()
        optimizer.state.clear()
        optimizer.state.update(kept)
        raise
    return losses[0]


def total(losses: Any) -> Any:
    """The sum of all losses."""
    if isinstance(losses, torch.Tensor):
        return losses
    return sum(losses.values() if isinstance(losses, dict) else losses)


class Snapshot:
    """What some tensors held."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._before = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def restore(self) -> None:
        """Put it back."""
        with torch.no_grad():
            for tensor, before in self._before:
                tensor.copy_(before)


def all_or_nothing(tensors: Iterable[torch.Tensor], run: Callable[[], Result]) -> Result:
    """Run something with gradients; if it fails, tensors are as they were before."""
    before = Snapshot(tensors)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return run()
    except BaseException:
        before.restore()
        raise
