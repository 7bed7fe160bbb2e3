"""Keep a replica of a module on each device, and sum their gradients into the module, bucket by bucket.

Every process sums the same buckets in the same order, whatever its own part of the batch was: a parameter without a
gradient brings zeros. So parameters that are not used, other branches on other devices, and a process without samples
are all the same, and nobody waits for a sum that another one left out. Which parameters had a gradient anywhere travels
with the numbers of the step.
"""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakMethod, finalize

import torch
from torch import nn

from weft.codegen.torch_functions import version_of
from weft.devices import Device
from weft.errors import UnsupportedError, UsageError
from weft.tracebacks import shows_less
from weft.train.devices.choose_devices import find_devices
from weft.train.processes.peers import Peers, Sum

Thing = TypeVar("Thing", nn.Module, torch.Tensor)


@torch.no_grad()
@shows_less
def allreduce(tensors: Sequence[torch.Tensor], method: str = "direct") -> None:
    """Put the sum of all tensors into each of them, in place; afterwards they are equal bit for bit.

    `method` says who sends to whom: "direct" sums on the first device, "ring" sums a part on each, "tree" in pairs.
    """
    if method not in METHODS:
        raise UsageError(f"method={method!r}", why=f"the ways to sum are {', '.join(METHODS)}")
    if not tensors:
        return
    kinds = {(tensor.shape, tensor.dtype) for tensor in tensors}
    if len(kinds) > 1:
        raise UsageError(f"tensors of different shapes or types cannot be summed: {sorted(map(str, kinds))}")
    if len({(tensor.device, tensor.data_ptr()) for tensor in tensors}) < len(tensors) and tensors[0].numel():
        raise UsageError("two of the tensors are the same memory", why="it would be summed twice", fix="weft.replicate")
    METHODS[method](tensors)


def _direct(tensors: Sequence[torch.Tensor]) -> None:
    for other in tensors[1:]:
        tensors[0].add_(other.to(tensors[0].device))
    for other in tensors[1:]:
        other.copy_(tensors[0])


def _tree(tensors: Sequence[torch.Tensor]) -> None:
    distance = 1
    while distance < len(tensors):
        for index in range(0, len(tensors) - distance, 2 * distance):
            tensors[index].add_(tensors[index + distance].to(tensors[index].device))
        distance *= 2
    for other in tensors[1:]:
        other.copy_(tensors[0])


def _ring(tensors: Sequence[torch.Tensor]) -> None:
    """Each device sums one part, round the ring, and then sends it round."""
    count = len(tensors)
    flat = [tensor.contiguous().view(-1) for tensor in tensors]
    parts = [list(whole.tensor_split(count)) for whole in flat]
    for part in range(count):
        for step in range(1, count):
            parts[part][part].add_(parts[(part + step) % count][part].to(tensors[part].device))
        for step in range(1, count):
            parts[(part + step) % count][part].copy_(parts[part][part])
    for tensor, whole in zip(tensors, flat, strict=True):
        if not tensor.is_contiguous():
            tensor.copy_(whole.view_as(tensor))


METHODS: dict[str, Callable[[Sequence[torch.Tensor]], None]] = {"direct": _direct, "ring": _ring, "tree": _tree}


@shows_less
def replicate(thing: Any, devices: Any) -> list[Any]:
    """Copy a module, a tensor, or a list of tensors to each device; `cpu:0` and `cpu:1` get copies of their own too.

    Copied parameters are leaves with a gradient of their own.
    """
    return [_copied(thing, place.torch_device) for place in find_devices(devices)]


def _copied(thing: Any, device: torch.device) -> Any:
    if isinstance(thing, nn.Module):
        return copy.deepcopy(thing).to(device)
    if isinstance(thing, torch.Tensor):
        made = thing.detach().to(device, copy=True).requires_grad_(thing.requires_grad)
        return nn.Parameter(made, thing.requires_grad) if isinstance(thing, nn.Parameter) else made
    if isinstance(thing, list | tuple):
        return [_copied(item, device) for item in thing]
    raise UsageError(f"a {type(thing).__name__} cannot be replicated", fix="give a module or tensors")


Stamp = tuple[int, int, int, int]
BUCKET_BYTES = 4 << 20


class Replicas:
    """The module, and its copies for the other devices; two virtual CPU devices have a replica each, too."""

    def __init__(self, net: nn.Module, places: Sequence[Device], prepare: Callable[[nn.Module], Any]) -> None:
        self.places = tuple(places)
        home = places[0].torch_device
        strangers = [name for name, tensor in net.state_dict(keep_vars=True).items() if not _is_on(tensor, home)]
        if strangers:
            raise UsageError(
                f"{strangers[0]} is not on {home}, the first device",
                why="the module itself works there; its replicas are on the others",
                fix=f'net.to("{home}") before the optimizer is made',
            )
        self.nets = [net, *(copy.deepcopy(net).to(place.torch_device) for place in places[1:])]
        self.parameters = [list(one.parameters()) for one in self.nets]
        for one in self.nets[1:]:
            one.zero_grad(set_to_none=True)
        for one in self.nets:
            prepare(one)
        self._equal: dict[tuple[int, int], Stamp] = {}

    def match(self) -> None:
        """Make the replicas equal to the module: its parameters, its buffers, and what it trains.

        Only parameters that were written since are copied, as a graph of autograd that is not used yet may hold them.
        """
        net = self.nets[0]
        self.check()
        parts = list(net.modules())
        for index, other in enumerate(self.nets[1:]):
            for part, copied_part in zip(parts, other.modules(), strict=True):
                copied_part.training = part.training
            for own_buffer, buffer in zip(net.buffers(), other.buffers(), strict=True):
                # Batch norm writes its statistics without telling their version, so they are copied always; through
                # `data`, because a graph that holds them must not take this for a change of what it computed with.
                _take_look(buffer, own_buffer)
                buffer.data.copy_(own_buffer)
            for place, (own, copied) in enumerate(zip(self.parameters[0], self.parameters[index + 1], strict=True)):
                if self._equal.get((index, place)) != _stamp(own, copied):
                    _take_look(copied, own)
                    with torch.no_grad():
                        copied.copy_(own)
                    self._equal[index, place] = _stamp(own, copied)
                if copied.requires_grad != own.requires_grad:
                    copied.requires_grad_(own.requires_grad)

    def check(self) -> None:
        """Refuse a module whose parameters were replaced: they would be no replica's, and no optimizer's."""
        now = list(self.nets[0].parameters())
        if len(now) != len(self.parameters[0]) or not all(map(operator.is_, now, self.parameters[0])):
            raise UsageError(
                "the module has other parameters than when its replicas were made",
                why="the replicas would compute with those of before, and so would the optimizer",
                fix="change the module first, then make the trainer, or the DataParallel, of it",
            )

    def take_buffers(self, place: int) -> None:
        """Give the module the buffers of a replica."""
        for own, buffer in zip(self.nets[0].buffers(), self.nets[place].buffers(), strict=True):
            own.data.copy_(buffer)

    def collect_gradients(self, indices: Sequence[int]) -> None:
        """Add gradients of the replicas to those of the module, in the order of devices, and forget them."""
        with torch.no_grad():
            for index in indices:
                own = self.parameters[0][index]
                for parameters in self.parameters[1:]:
                    gradient = parameters[index].grad
                    parameters[index].grad = None
                    if gradient is None:
                        continue
                    if own.grad is None:
                        own.grad = gradient.to(own.device)
                    else:
                        own.grad.add_(gradient.to(own.device))


def _take_look(copied: torch.Tensor, own: torch.Tensor) -> None:
    """Give a copy other memory where its original has become one of another type or size, as net.half() makes it."""
    if (copied.dtype, copied.shape) != (own.dtype, own.shape):
        copied.data = torch.empty_like(own, device=copied.device)


def _stamp(own: torch.Tensor, copied: torch.Tensor) -> Stamp:
    """What changes whenever either of two tensors is written, or its memory replaced."""
    return own.data_ptr(), version_of(own), copied.data_ptr(), version_of(copied)


def _is_on(tensor: Any, device: torch.device) -> bool:
    if not isinstance(tensor, torch.Tensor):
        return True
    index = tensor.device.index or 0
    return tensor.device.type == device.type and (device.type == "cpu" or index == device.index)


def _tell(ready: WeakMethod[Callable[..., None]], place: int, index: int, parameter: torch.Tensor) -> None:
    """Tell the buckets of a gradient, if they are still there."""
    found = ready()
    if found is not None:
        found(place, index, parameter)


class GradientBuckets:
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
            ready = WeakMethod(self._ready)  # parameters live on: who trains them next finds no hooks of this
            for place, parameters in enumerate(replicas.parameters):
                for index, parameter in enumerate(parameters):
                    if parameter.requires_grad:
                        hook = partial(_tell, ready, place, index)
                        finalize(self, parameter.register_post_accumulate_grad_hook(hook).remove)

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
