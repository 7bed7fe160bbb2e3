"""Sum tensors over devices (all-reduce), and copy one to each of them (replicate)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from weft.errors import UsageError
from weft.tracebacks import shows_less
from weft.train.devices.choose_devices import find_devices

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
