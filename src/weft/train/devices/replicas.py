"""A module and devices -> a replica on each, kept equal to the module: the module itself works on the first device."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from weft.codegen.library import version_of
from weft.devices import Device
from weft.errors import UsageError

Stamp = tuple[int, int, int, int]


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
        now = list(net.parameters())
        if len(now) != len(self.parameters[0]) or not all(map(operator.is_, now, self.parameters[0])):
            raise UsageError(
                "the module has other parameters than when its replicas were made",
                why="the replicas would compute with those of before",
                fix="change the module first, then make the trainer, or the DataParallel, of it",
            )
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
