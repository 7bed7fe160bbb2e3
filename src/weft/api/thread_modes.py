"""The modes of one thread -> the same in another that works for it: PyTorch keeps them for each thread apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from weft.lazy_tensors.settings import flushes_denormals, flushing_denormals

KINDS = ("cpu", "cuda")


class ThreadModes(NamedTuple):
    """What operators of a thread are subject to."""

    grad: bool
    inference: bool
    flushes: bool  # it takes the smallest numbers for 0
    autocast: tuple[tuple[str, torch.dtype], ...]
    stream: Any  # the current one of the current GPU; None for the usual one of the first


def thread_modes() -> ThreadModes:
    """Tell the modes of this thread."""
    autocast = tuple((kind, torch.get_autocast_dtype(kind)) for kind in KINDS if torch.is_autocast_enabled(kind))
    return ThreadModes(
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), flushes_denormals(), autocast, _stream()
    )


def _stream() -> Any:
    if not torch.cuda.is_initialized():
        return None
    current = torch.cuda.current_stream()
    return None if current == torch.cuda.default_stream(0) else current


def same_modes(modes: ThreadModes) -> AbstractContextManager[None]:
    """Let this thread have these modes in the block."""
    return nullcontext() if modes == thread_modes() else _changed(modes)


@contextmanager
def _changed(modes: ThreadModes) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(modes.inference))
        stack.enter_context(torch.set_grad_enabled(modes.grad))
        stack.enter_context(flushing_denormals(modes.flushes))
        for kind in KINDS:
            dtype = dict(modes.autocast).get(kind)
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        if torch.cuda.is_initialized():
            # Makes its GPU the current one, too.
            stack.enter_context(torch.cuda.stream(modes.stream or torch.cuda.default_stream(0)))
        yield
