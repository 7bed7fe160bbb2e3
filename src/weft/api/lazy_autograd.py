"""Entries of autograd that PyTorch shows to no interceptor -> the same, given ordinary tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from weft.api.lazy_questions import tensors_in
from weft.api.lazy_session import SESSION
from weft.api.lazy_tensor import LazyTensor
from weft.trace.modes import has_function_modes, without_modes

_REPLACED: list[Callable[..., Any]] = []


def intercept_autograd(kind: type) -> None:
    """Let `torch.autograd.backward` and `Function.apply` take lazy tensors; done once, at the first lazy block.

    Both call code of the user's from within PyTorch, which gives it ordinary tensors, and expects such from it: modes
    of this kind, which would queue what that code calls, are off meanwhile.
    """
    if _REPLACED:
        return
    backward, apply = torch.autograd.backward, torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]
    _REPLACED.extend((backward, apply))

    def at_once(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        lazily = any(tensor.__class__ is LazyTensor for tensor in tensors_in((args, kwargs)))
        if not lazily and not has_function_modes():
            return function(*args, **kwargs)
        SESSION.finish()  # that code may read or write what is queued
        with without_modes(kind):
            return SESSION.now(function, args, kwargs, changes=True)

    @functools.wraps(backward)
    def backward_when_there(*args: Any, **kwargs: Any) -> None:
        at_once(backward, args, kwargs)

    @functools.wraps(apply)
    def apply_when_there(cls: type, *args: Any, **kwargs: Any) -> Any:
        return at_once(functools.partial(apply, cls), args, kwargs)

    torch.autograd.backward = backward_when_there
    torch.autograd.Function.apply = classmethod(apply_when_there)  # type: ignore[assignment]
