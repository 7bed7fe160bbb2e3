"""Gradients of several devices and processes -> their sums in the module, bucket by bucket while the backward runs.

Every process sums the same buckets in the same order, whatever its own part of the batch was: a parameter without a
gradient brings zeros. So parameters that are not used, other branches on other devices, and a process without samples
are all the same, and nobody waits for a sum that another one left out. Which parameters had a gradient anywhere travels
with the numbers of the step.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.train.devices.replicas import Replicas
from weft.train.processes.peers import Peers, Sum

BUCKET_BYTES = 4 << 20


class GradientSums:
    """Sums the gradients of all replicas here, and of all peers, into the gradients of the module.

    With `overlap`, a bucket is summed as soon as its last gradient is there, by the thread that computed that.
    """

    def __init__(self, replicas: Replicas, peers: Peers | None, *, overlap: bool) -> None:
        self.replicas = replicas
        self.peers = peers
        # Held while a bucket becomes ready and is sent, so that all processes send in one order. On the other side are
        # the threads of other devices in the same backward; who holds it waits for none of them.
        self._lock = threading.Lock()
        self._pattern: tuple[bool, ...] | None = None
        self._collecting = False
        if overlap and (peers is not None or len(replicas.places) > 1):
            for place, parameters in enumerate(replicas.parameters):
                for index, parameter in enumerate(parameters):
                    if parameter.requires_grad:
                        parameter.register_post_accumulate_grad_hook(partial(self._ready, place, index))

    def begin(self, busy: Sequence[int], *, collect: bool) -> None:
        """Get ready for a backward on these devices; `collect` says that an update follows it."""
        pattern = tuple(parameter.requires_grad for parameter in self.replicas.parameters[0])
        if pattern != self._pattern:
            self._pattern = pattern
            self._buckets = buckets(self.replicas.parameters[0])
            self._bucket_of = {index: number for number, bucket in enumerate(self._buckets) for index in bucket}
        self._missing = [len(bucket) * len(busy) for bucket in self._buckets]
        self._came: set[tuple[int, int]] = set()
        self._next = 0
        self._sent: list[Sum] = []
        self._used = [0.0] * len(pattern)
        self._collecting = collect and bool(busy)

    def finish(self) -> None:
        """Sum what is not summed yet, and wait for all of it: the module has the gradient."""
        self._collecting = False
        while self._next < len(self._buckets):
            self._send_next()
        if self.peers is None:
            return
        used = self.peers.sum(torch.tensor(self._used)).tolist()
        own = self.replicas.parameters[0]
        for bucket, begun in zip(self._buckets, self._sent, strict=True):
            flat = self.peers.finish_sum(begun)
            pieces = flat.split([own[index].numel() for index in bucket])
            for index, piece in zip(bucket, pieces, strict=True):
                own[index].grad = piece.view(own[index].shape) if used[index] else None

    def forget(self) -> None:
        """Leave a backward that failed."""
        self._collecting = False

    def _ready(self, place: int, index: int, _parameter: torch.Tensor) -> None:
        """Note a gradient that is complete on one device."""
        if not self._collecting:
            return
        with self._lock:
            if (place, index) in self._came:
                raise UnsupportedError(
                    f"the gradient of parameter {index} came twice in one backward",
                    why="it may have been summed over devices already (reentrant activation checkpoints do that)",
                    fix="weft.Trainer(..., overlap=False), or use_reentrant=False",
                )
            self._came.add((place, index))
            self._missing[self._bucket_of[index]] -= 1
            while self._next < len(self._buckets) and not self._missing[self._next]:
                self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        self.replicas.collect_gradients(bucket)
        if self.peers is None:
            return
        own = self.replicas.parameters[0]
        for index in bucket:
            self._used[index] = float(own[index].grad is not None)
        flat = torch.cat([_flat(own[index]) for index in bucket])
        self._sent.append(self.peers.begin_sum(flat))


def buckets(parameters: Sequence[torch.Tensor], limit: int = BUCKET_BYTES) -> list[list[int]]:
    """Group the parameters that are trained, last first as their gradients come, by type, place and size."""
    found: list[list[int]] = []
    open_ones: dict[Any, tuple[list[int], int]] = {}
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        if not parameter.requires_grad:
            continue
        kind = (parameter.dtype, parameter.device)
        bucket, size = open_ones.get(kind, ([], limit))
        bytes_more = parameter.numel() * parameter.element_size()
        if size + bytes_more > limit:
            bucket, size = [], 0
            found.append(bucket)
        bucket.append(index)
        open_ones[kind] = (bucket, size + bytes_more)
    return found


def _flat(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter as a row, zeros where it has none."""
    if parameter.grad is None:
        return parameter.new_zeros(parameter.numel())
    gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
    return gradient.reshape(-1)
