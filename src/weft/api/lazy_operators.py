"""Calls of a known form on tensors of the recording under way -> queued the short way.

It is gone only where nothing is unusual: the call starts no other recording, and gives one new tensor. For the
arithmetic of lazy tensors (`y * 0.5`, `a + b`) it leaves out PyTorch's own dispatch, which costs more than noting the
call. Everything else goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import get_default_dtype, is_autocast_enabled, is_grad_enabled, is_inference_mode_enabled

from weft.api.lazy_call import LITERALS, NUMBERS
from weft.api.lazy_learning import Form
from weft.api.lazy_recording import Recording
from weft.api.lazy_session import MOST_STEPS, SESSION
from weft.api.lazy_table import NUMBERS_FREE
from weft.api.lazy_tensor import LazyTensor
from weft.api.lazy_values import PLAIN
from weft.trace.capture import only_function_mode, traced_elsewhere

# Python's operator, and the function that PyTorch reports for it.
OPERATORS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("__add__", torch.Tensor.add),
    ("__sub__", torch.Tensor.sub),
    ("__mul__", torch.Tensor.mul),
    ("__truediv__", torch.Tensor.div),
    ("__matmul__", torch.Tensor.matmul),
)


def shorten(mode: type) -> None:
    """Give lazy tensors these operators; `mode` is what intercepts PyTorch's functions in a lazy block."""
    for name, function in OPERATORS:
        setattr(LazyTensor, name, _operator(function, getattr(torch.Tensor, name), mode))


def _operator(function: Callable[..., Any], usual: Callable[..., Any], mode: type) -> Callable[..., Any]:
    def operator(self: LazyTensor, other: Any) -> Any:
        result = queued(function, (self, other)) if only_function_mode() is mode else None
        return usual(self, other) if result is None else result

    operator.__name__ = usual.__name__
    return operator


def queued(function: Callable[..., Any], args: Any) -> LazyTensor | None:
    """The result of a call that was queued; None if it has to go the usual way.

    Functions of PyTorch that are called here would be intercepted: of tensors only the class is looked at, and what
    the recording knows of them.
    """
    recording = SESSION.own.recording
    if recording is None or is_autocast_enabled("cpu") or is_inference_mode_enabled() or traced_elsewhere(()):
        return None
    key: list[Any] = [function, is_grad_enabled(), get_default_dtype()]
    tensors: list[Any] = []
    numbers: list[Any] = []
    takes: list[int] = []
    for item in args:
        kind = item.__class__
        if kind is LazyTensor and item.value.recording is recording:
            look, index = item.value.look, item.value.index
        elif kind is LazyTensor or kind in PLAIN:
            index = recording.knows(item.value if kind is LazyTensor else item)
            if index is None:
                return None
            look = recording.external_looks[~index]
        elif kind in NUMBERS and function in NUMBERS_FREE:
            numbers.append(item)
            key.append(kind)
            continue
        elif kind in LITERALS:
            key += (kind, item)
            continue
        else:
            return None
        key.append(look)
        if index in takes:
            key.append(takes.index(index))
        tensors.append(item)
        takes.append(index)
    form = SESSION.forms.get(tuple(key))
    if form is None or not form.plain or form.at_once:
        return None
    with SESSION.lock:
        # Closed: another thread may have pushed it.
        if recording.closed or _ends(recording, form):
            return None
        return SESSION.note_plain(recording, form, tensors, numbers, tuple(takes))


def _ends(recording: Recording, form: Form) -> bool:
    """Whether this call may end the recording, or belongs to the next."""
    return (
        recording.seconds + form.seconds > SESSION.own.patience
        or recording.bytes + form.bytes > recording.most_bytes
        or len(recording.places) + 1 >= MOST_STEPS
        or (form.grad and bool(recording.written))
        or (form.grad and bool(recording.gradients))
    )
