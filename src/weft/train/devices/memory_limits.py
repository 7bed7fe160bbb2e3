"""The memory of devices, and what a sample of the user's model takes -> how many samples each device may be given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from weft.devices import Device
from weft.errors import UsageError
from weft.train.devices.batch import moved, samples_in, split_tree, tensors_in
from weft.train.devices.split import split_sizes

USED = 0.8  # of a device's memory: gradients, operators' temporary memory and the allocator's gaps take the rest
PROBED = 4  # samples whose memory is measured: batch norm needs more than one


class MemoryLimits:
    """Splits batches so that no device is given more samples than its memory holds.

    What a sample takes is what its forward keeps for the backward, measured on a few samples of each new shape.
    """

    def __init__(self, places: Sequence[Device], given: Mapping[str, float], *, ask: bool) -> None:
        self._places = places
        unknown = set(given) - {str(place) for place in places}
        if unknown:
            raise UsageError(
                f"memory is given for {', '.join(sorted(unknown))}, which is not among the devices",
                why=f"the devices are {', '.join(map(str, places))}",
            )
        self._given = given
        self._ask = ask  # a GPU for its memory, where none is given
        self._needed: dict[tuple[torch.Size, ...], float] = {}  # bytes a sample, by its shapes

    @property
    def any(self) -> bool:
        """Tell whether some device has a limit."""
        return bool(self._given) or (self._ask and any(place.kind == "cuda" for place in self._places))

    def sizes(self, net: nn.Module, x: Any, shares: Sequence[float]) -> list[int]:
        """Divide a batch by shares, and by what fits."""
        key, count = tuple(leaf.shape[1:] for leaf in tensors_in(x)), samples_in(x)
        if key not in self._needed:
            probed = min(PROBED, count)
            self._needed[key] = bytes_per_sample(net, split_tree(x, [probed, count - probed])[0])
        needed = self._needed[key]
        memory = [self._memory(place) for place in self._places]
        most = [count if size is None else min(count, int(USED * size / needed)) for size in memory]
        if sum(most) < count:
            holds = ", ".join(f"{place} holds {part}" for place, part in zip(self._places, most, strict=True))
            raise UsageError(
                f"a batch of {count} samples does not fit into the memory of the devices",
                why=f"a sample takes {needed / 1e6:.3g} MB: {holds}",
                fix="smaller batches, accumulate=... of which make one update",
            )
        return capped_sizes(count, shares, most)

    def _memory(self, place: Device) -> float | None:
        """Give the bytes a device has for samples; None where nobody has said."""
        if str(place) in self._given or place.kind != "cuda" or not self._ask:
            return self._given.get(str(place))
        device = place.torch_device
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + kept)


def capped_sizes(count: int, shares: Sequence[float], most: Sequence[int]) -> list[int]:
    """Divide a count in proportion to shares, no part above its limit: what is too much goes to the others."""
    sizes = [0] * len(shares)
    room = set(range(len(shares)))
    left = count
    while left:
        weights = [share if index in room else 0.0 for index, share in enumerate(shares)]
        if not any(weights):  # only devices that would be left out have room
            weights = [float(index in room) for index in range(len(shares))]
        tried = split_sizes(left, weights)
        full = {index for index in room if tried[index] > most[index]}
        for index in full or room:
            sizes[index] = most[index] if full else tried[index]
        left = left - sum(sizes[index] for index in full) if full else 0
        room -= full
    return sizes


def bytes_per_sample(net: nn.Module, x: Any) -> float:
    """Measure what a forward keeps for the backward, a sample; buffers and random states stay as they are."""
    home = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
    own = {tensor.untyped_storage().data_ptr() for tensor in (*net.parameters(), *net.buffers())}
    kept: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    part = moved(x, home, copy=True)
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with torch.random.fork_rng(), torch.enable_grad(), saved_tensors_hooks(count, lambda tensor: tensor):
        answers = functional_call(net, buffers, (part,))
    visible = sum(leaf.nbytes for leaf in tensors_in((answers, part)))
    return max(sum(kept.values()), visible, 1) / max(1, samples_in(part))
