"""The last call that came with plain tensors -> whether this one may run the same program, at little cost."""

from __future__ import annotations

from typing import Any

import torch

from weft.api.guarded import Guarded
from weft.runtime.ever_fewer import EverFewer
from weft.runtime.whole_call import Whole, refuse_all
from weft.trace.capture import traced_elsewhere
from weft.trace.modes import has_function_modes
from weft.trace.signature import autocast_key

PLAIN_ARGUMENTS = (torch.Tensor, torch.nn.Parameter)


class QuickCall:
    """What a call must look like to run this program without a key being made of it."""

    def __init__(self, guarded: Guarded, arguments: tuple[torch.Tensor, ...]) -> None:
        self.guarded = guarded
        self._count = len(arguments)
        self._looks = tuple(_look(argument) for argument in arguments)
        self._modes = _modes()
        self._attempts = EverFewer()

    def whole_call(self, arguments: tuple[Any, ...]) -> Whole:
        """What may stand for this call from now on: tried at some calls, ever fewer, as it is costly to make."""
        if autocast_key() is not None:
            return refuse_all  # it asks the thread's modes one by one, and not which dtype autocast casts to
        return (self.guarded.whole_call(arguments) if self._attempts.is_due() else None) or refuse_all

    def inputs(self, arguments: tuple[Any, ...]) -> list[Any] | None:
        """The program's inputs, if it may run."""
        if len(arguments) != self._count or _modes() != self._modes or traced_elsewhere(()):
            return None
        for argument, look in zip(arguments, self._looks, strict=True):
            if type(argument) not in PLAIN_ARGUMENTS or _look(argument) != look:
                return None
        return self.guarded.ready(arguments)


def quick_call(guarded: Guarded, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> QuickCall | None:
    """The quick form of a call, if it has one: dense tensors by position, and no mode that is looked at closely."""
    if keywords or has_function_modes():
        return None
    if any(
        type(argument) not in PLAIN_ARGUMENTS or argument.dtype.is_complex or argument.is_neg()
        for argument in arguments
    ):
        return None
    return QuickCall(guarded, arguments)


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Everything about a plain tensor that a program depends on, apart from its elements."""
    grad = tensor.requires_grad
    kind = (tensor.dtype, tensor.device, tensor.layout, tensor.is_inference())
    return (*kind, tensor.shape, tensor.stride(), grad, grad and tensor.is_leaf)


def _modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast_key(),
        torch.get_default_dtype(),
        has_function_modes(),
    )
