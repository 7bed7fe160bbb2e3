"""Let PyTorch make the step of an optimizer without a rule, undone if it fails."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TypeVar

import torch

from weft.codegen.torch_functions import copy_all
from weft.interrupts import interrupts_after

Result = TypeVar("Result")


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer computes the loss itself, perhaps several times a step, as LBFGS does."""
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def by_library(optimizer: torch.optim.Optimizer, differentiate: Callable[[], Any]) -> Any:
    """Let `differentiate` compute losses and gradients and PyTorch update; gives the first losses."""
    losses: list[Any] = []

    def closure() -> Any:
        losses.append(differentiate())
        return total(losses[-1])

    if needs_closure(optimizer):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
    return losses[0]


def all_or_nothing(run: Callable[[], Result], undo: Callable[[], None], finish: Callable[[Result], None]) -> Result:
    """Run something, then finish what it changes; if it fails or is interrupted, its changes are undone.

    An interrupt that comes while all is finished or undone takes effect after that.
    """
    grad = torch.is_grad_enabled()
    with interrupts_after() as whole:
        try:
            with whole.cut_short():
                found = run()
            finish(found)
        except BaseException:
            torch.set_grad_enabled(grad)  # an interrupt may cut short what was to set it back
            undo()
            raise
    return found


def total(losses: Any) -> Any:
    """The sum of all losses."""
    if isinstance(losses, torch.Tensor):
        return losses
    return sum(losses.values() if isinstance(losses, dict) else losses)


class OptimizerSnapshot:
    """What some tensors and an optimizer's state held; taken again, it uses the same memory."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._state: MutableMapping[Any, Any] = {}
        self._entries: list[tuple[Any, Any]] = []

    def take(self, tensors: Iterable[torch.Tensor], state: MutableMapping[Any, Any]) -> None:
        """Note what they hold now."""
        kept: list[torch.Tensor] = []
        self._state = state
        self._entries = [(key, _copied(entry, kept)) for key, entry in state.items()]
        found = [*tensors, *kept]
        if len(found) == len(self._tensors) == len(self._copies) and all(
            map(_is_as_before, found, self._tensors, self._copies)
        ):
            if found:
                with torch.no_grad():
                    copy_all(self._copies, found)
        else:
            self._copies = [tensor.detach().clone() for tensor in found]
            self._tensors = found

    def restore(self) -> None:
        """Put it back."""
        with torch.no_grad():
            for tensor, before in zip(self._tensors, self._copies, strict=True):
                tensor.copy_(before)
        self._state.clear()
        self._state.update(self._entries)


def _copied(entry: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy of what an optimizer keeps in which tensors are the same ones; they are added to the list."""
    if isinstance(entry, torch.Tensor):
        tensors.append(entry)
        return entry
    if type(entry) in (list, tuple):
        return type(entry)(_copied(item, tensors) for item in entry)
    if type(entry) is dict:
        return {key: _copied(item, tensors) for key, item in entry.items()}
    return copy.deepcopy(entry)


def _is_as_before(tensor: torch.Tensor, before: torch.Tensor, copied: torch.Tensor) -> bool:
    return (
        tensor is before
        and tensor.shape == copied.shape
        and tensor.dtype == copied.dtype
        and tensor.device == copied.device
        and tensor.layout is torch.strided
    )
