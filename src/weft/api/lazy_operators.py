"""The arithmetic of lazy tensors (`y * 0.5`, `a + b`) -> queued without the way through PyTorch's own dispatch.

That way costs more than noting the call. It is left out only where nothing is unusual: a call of a known form, on
values of this thread's recording, that starts no other recording. Everything else goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import get_default_dtype, is_autocast_enabled, is_grad_enabled, is_inference_mode_enabled

from weft.api.lazy_call import NUMBERS
from weft.api.lazy_learning import Form
from weft.api.lazy_recording import Recording
from weft.api.lazy_session import MOST_STEPS, SESSION
from weft.api.lazy_table import NUMBERS_FREE
from weft.api.lazy_tensor import LazyTensor
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
    free = function in NUMBERS_FREE

    def operator(self: LazyTensor, other: Any) -> Any:
        result = _queued(function, self, other, free) if only_function_mode() is mode else None
        return usual(self, other) if result is None else result

    operator.__name__ = usual.__name__
    return operator


def _queued(function: Callable[..., Any], one: LazyTensor, other: Any, free: bool) -> LazyTensor | None:
    """The result of a call that was queued; None if it has to go the usual way.

    Functions of PyTorch that are called here would be intercepted: only lazy tensors and numbers are looked at.
    """
    recording = SESSION.own.recording
    value = one.value
    if recording is None or value.recording is not recording:
        return None
    if is_autocast_enabled("cpu") or is_inference_mode_enabled() or traced_elsewhere(()):
        return None
    kind = other.__class__
    if kind is LazyTensor:
        second = other.value
        if second.recording is not recording:
            return None
        tensors, numbers = [one, other], []
        takes: tuple[int, ...] = (value.index, second.index)
        same = (0,) if one is other else ()
        key: Any = (function, is_grad_enabled(), get_default_dtype(), value.look, second.look, *same)
    elif free and kind in NUMBERS:
        tensors, numbers, takes = [one], [other], (value.index,)
        key = (function, is_grad_enabled(), get_default_dtype(), value.look, kind)
    else:
        return None
    form = SESSION.forms.get(key)
    if form is None or not form.plain or form.at_once:
        return None
    with SESSION.lock:
        # Closed: another thread may have pushed it.
        return (
            None
            if recording.closed or _ends(recording, form)
            else SESSION.note_plain(recording, form, tensors, numbers, takes)
        )


def _ends(recording: Recording, form: Form) -> bool:
    """Whether this call may end the recording, or belongs to the next."""
    return (
        recording.seconds + form.seconds > SESSION.own.patience
        or recording.bytes + form.bytes > recording.most_bytes
        or len(recording.places) + 1 >= MOST_STEPS
        or (form.grad and bool(recording.written))
        or (form.grad and bool(recording.gradients))
    )
