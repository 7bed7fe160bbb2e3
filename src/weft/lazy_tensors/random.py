"""Dropout in lazy code -> its random part, drawn at the call so that streams stay in order, and a product to queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.nn import functional

from weft.lazy_tensors.tensor import LazyTensor
from weft.lazy_tensors.values import Look, look_of


class Queue(Protocol):
    """What dropout needs of the session."""

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function of PyTorch inside a lazy block."""

    def now(self, function: Callable[..., Any], args: Any, kwargs: Any, *, changes: bool) -> Any:
        """Run a call at once."""


class Dropout:
    """Calls of dropout: which numbers fall away depends on no element, so they are drawn without waiting for any."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def functions(self) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
        """The functions of PyTorch that are handled here."""
        yield functional.dropout, self._dropout

    def _dropout(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        tensor, p = given["input"], given.get("p", 0.5)
        look = tensor.value.look_now() if tensor.__class__ is LazyTensor else look_of(tensor)
        plain = not given.get("inplace") and given.get("training", True)
        if look is None or not plain or not _drawn_alone(look, p):
            return self._queue.now(function, args, kwargs, changes=True)
        noise = _like(look).bernoulli_(1 - p).div_(1 - p)  # what PyTorch's own operator does on a CPU
        return self._queue.call(torch.mul, (tensor, noise), {})


def _drawn_alone(look: Look, p: Any) -> bool:
    return look.dtype.is_floating_point and 0 < p < 1 and 0 not in look.shape


def _like(look: Look) -> torch.Tensor:
    placeholder = torch.empty_strided(look.shape, look.strides, dtype=look.dtype, device="meta")
    return torch.empty_like(placeholder, device="cpu")
