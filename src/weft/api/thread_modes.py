"""Give work on another thread the modes of its caller, and on a GPU a stream of its own behind the caller's.

PyTorch keeps modes for each thread apart. Each worker of a GPU has its own stream, so that small work of two of them
runs side by side. When a call is done, all that it queued on the GPU is done: whoever waits for it, on any stream,
finds finished elements.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from weft.lazy_tensors.settings import flushes_denormals, flushing_denormals
from weft.lazy_tensors.tensor import tensors_in

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


class _Streams(threading.local):
    """The stream of this thread on each GPU."""

    def __init__(self) -> None:
        self.of: dict[torch.device, torch.cuda.Stream] = {}


_STREAMS = _Streams()


class GpuLane:
    """Where a call on a GPU was asked for: on which stream, and behind what."""

    def __init__(self, place: str) -> None:
        self._device = torch.device(place)
        self._caller = torch.cuda.current_stream(self._device)
        self._before = self._caller.record_event()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A block of this thread whose work goes to its own stream of the GPU; all of it is done behind the block."""
        stream = _STREAMS.of.get(self._device)
        if stream is None:
            stream = _STREAMS.of[self._device] = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):  # its GPU is the current one, too
            stream.wait_event(self._before)
            try:
                yield
            finally:
                # On the other side: the GPU, which waits for no thread of ours. Also after an error: what was queued
                # before it reads tensors that nobody may hold any longer than this call.
                stream.synchronize()

    def hand_over(self, result: Any) -> None:
        """Note that the caller's stream may use what the call made: its memory is not taken again before that."""
        for tensor in tensors_in(result):
            if tensor.is_cuda:
                tensor.record_stream(self._caller)
