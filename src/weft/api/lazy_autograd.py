"""Entries of autograd that PyTorch shows to no interceptor -> the same, given ordinary tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from weft.api.lazy_questions import tensors_in
from weft.api.lazy_session import SESSION
from weft.api.lazy_tensor import LazyTensor

_REPLACED: list[Callable[..., Any]] = []


def intercept_autograd() -> None:
    """Let `torch.autograd.backward` and `Function.apply` take lazy tensors; done once, at the first lazy block."""
    if _REPLACED:
        return
    backward, apply = torch.autograd.backward, torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]
    _REPLACED.extend((backward, apply))

    @functools.wraps(backward)
    def backward_when_there(*args: Any, **kwargs: Any) -> None:
        if any(tensor.__class__ is LazyTensor for tensor in tensors_in((args, kwargs))):
            SESSION.now(backward, args, kwargs, changes=True)
        else:
            backward(*args, **kwargs)

    @functools.wraps(apply)
    def apply_when_there(cls: type, *args: Any, **kwargs: Any) -> Any:
        if any(tensor.__class__ is LazyTensor for tensor in tensors_in((args, kwargs))):
            return SESSION.now(functools.partial(apply, cls), args, kwargs, changes=True)
        return apply(cls, *args, **kwargs)

    torch.autograd.backward = backward_when_there
    torch.autograd.Function.apply = classmethod(apply_when_there)  # type: ignore[assignment]
