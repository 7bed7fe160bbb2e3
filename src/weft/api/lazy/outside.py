"""Calls that meet lazy tensors outside of lazy blocks, or past PyTorch's Python functions -> what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.api.lazy.questions import look_at, tensors_in
from weft.api.lazy.session import SESSION
from weft.api.lazy.table import LOOKING, QUEUED, READING
from weft.api.lazy.tensor import LazyTensor
from weft.errors import UnsupportedError


def install() -> None:
    """Let lazy tensors ask here."""
    LazyTensor.on_function = staticmethod(_function)
    LazyTensor.on_operator = staticmethod(_operator)


def _function(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if function in LOOKING:
        return look_at(function, args, kwargs)
    if SESSION.make_ordinary(args, kwargs):
        return function(*args, **kwargs)
    return SESSION.now(function, args, kwargs, changes=function not in READING and function not in QUEUED)


def _operator(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = SESSION.now(function, args, kwargs, changes=True)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in((args, kwargs))):
        raise UnsupportedError("a lazy tensor that carries a gradient was used past PyTorch's Python interface")
    return result
