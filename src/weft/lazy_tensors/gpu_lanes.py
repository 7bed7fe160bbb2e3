"""A spawned call that is placed on a GPU -> a stream of its own there, behind what its caller had queued.

Each worker of a GPU has its own stream, so that small work of two of them runs side by side. When a call is done, all
that it queued on the GPU is done: whoever waits for it, on any stream, finds finished elements.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from weft.lazy_tensors.questions import tensors_in

LANES = 2  # of a GPU: so many calls queue work on it at once


def gpu_lanes() -> dict[str, int]:
    """Give the devices of an engine for the GPUs of this machine, each with its lanes."""
    return {f"cuda:{index}": LANES for index in range(torch.cuda.device_count())}


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
