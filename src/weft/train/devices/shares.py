"""Give each device the share of a batch that its measured speed and its memory allow."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from weft.devices import Device
from weft.errors import UsageError
from weft.train.devices.split import Fields, moved, samples_in, split_sizes, split_tree, tensors_in

WARM_UP = 2  # steps in which programs are compiled and memory is found: they say nothing of the speed
MEMORY = 0.7  # of the former estimate in the next one: a step that was disturbed changes little
LEAST = 0.02  # of the fastest device's share: so little is tried from time to time on a device that was slow
TRIED = 16  # steps between two trials
SUSPICIOUS = 0.35  # of the fastest device's speed: one slower than that has to show that it brings something
SUSPECTED_AT = 6  # steps after which the speeds are known well enough to suspect a device
COMPARED = 5  # steps with it and as many without it, in turn
RETRIED = 64  # steps after which a device that was left out is compared again; then after twice as many each time
WORTH = 0.99  # a device stays if steps with it take less than this part of those without it
PARTS = 32  # of a batch: in so many the sizes of programs are counted, as each size is a program to be compiled
PAYS = 0.9  # programs get other sizes if steps then take less than this part of the time

logger = logging.getLogger("weft")
USED = 0.8  # of a device's memory: gradients, operators' temporary memory and the allocator's gaps take the rest
PROBED = 4  # samples whose memory is measured: batch norm needs more than one


class MeasuredShares:
    """The shares of devices by their speed on the user's own model, adjusted while training goes on.

    `steady` shares are those of devices that run programs: they change only where that pays, and a step with a size
    that is new says nothing of the speed, as it is compiled for.
    """

    def __init__(self, count: int, names: Sequence[str] = (), *, steady: bool = False) -> None:
        self._steady = steady
        self._held = [1.0] * count  # the steady shares
        self._compiled: set[tuple[int, int]] = set()  # devices with sizes that they had
        self._speeds: list[float | None] = [None] * count
        self._seen = 0
        self._names = list(names) or [f"device {index}" for index in range(count)]
        self.dropped: dict[int, str] = {}  # devices that are left out, and the sentence that says why
        self._retries: dict[int, int] = {}  # steps after which each is compared again
        self._due: dict[int, int] = {}  # the step in which that is
        self._suspect: int | None = None  # the device that is left out of every other step, to see what it brings
        self._times: tuple[list[float], list[float]] = ([], [])  # seconds a sample: with it, without it

    def shares(self) -> list[float]:
        """Give a number for each device: equal until all were measured."""
        known = [speed for speed in self._speeds if speed is not None]
        if len(known) < len(self._speeds):
            return [1.0] * len(self._speeds)
        if self._steady:
            shares = self._steadily(known)
        else:
            shares = [max(speed, LEAST * max(known)) if self._seen % TRIED == 0 else speed for speed in known]
        without = {*self.dropped} - {self._suspect}
        if self._suspect is not None and self._seen % 2:
            without.add(self._suspect)
        return [0.0 if index in without else share for index, share in enumerate(shares)]

    def _steadily(self, speeds: Sequence[float]) -> list[float]:
        """Give the shares of before unless others are so much better that compiling for them pays."""

        def seconds(shares: Sequence[float]) -> float:
            return max(share / speed for share, speed in zip(shares, speeds, strict=True)) / sum(shares)

        if seconds(speeds) < PAYS * seconds(self._held):
            exact = [PARTS * speed / sum(speeds) for speed in speeds]
            less = [float(int(share)) for share in exact]
            less[exact.index(max(exact))] += PARTS - sum(less)
            self._held = min([float(round(share)) for share in exact], less, key=seconds)
        return self._held

    def note(self, index: int, samples: int, seconds: float) -> None:
        """Take in how long a device took for so many samples."""
        if self._steady and (index, samples) not in self._compiled:
            self._compiled.add((index, samples))
            return
        if self._seen < WARM_UP or not samples or seconds <= 0:
            return
        speed, before = samples / seconds, self._speeds[index]
        self._speeds[index] = speed if before is None else MEMORY * before + (1 - MEMORY) * speed

    def end_of_step(self, samples: int = 0, seconds: float = 0.0) -> None:
        """Count a step, and how long all devices together took for it."""
        if self._suspect is not None and samples:
            self._times[self._seen % 2].append(seconds / samples)
            if min(map(len, self._times)) >= COMPARED:
                self._decide(self._suspect, samples)
        self._seen += 1
        if self._seen == SUSPECTED_AT and seconds:
            self._suspect = self._slow_one()
        if self._suspect is None:
            self._suspect = next((index for index, step in self._due.items() if self._seen >= step), None)

    def _slow_one(self) -> int | None:
        """The slowest device, if it is so slow that it may cost more than it brings."""
        known = [(speed, index) for index, speed in enumerate(self._speeds) if speed and index not in self.dropped]
        if len(known) < 2 or min(known)[0] > SUSPICIOUS * max(known)[0]:
            return None
        return min(known)[1]

    def _decide(self, suspect: int, samples: int) -> None:
        """Leave a device out while it does not pay; others may have disturbed it, so it is compared again."""
        with_it, without_it = (statistics.median(times) * samples * 1e3 for times in self._times)
        self._suspect, self._times = None, ([], [])
        was_out, numbers = suspect in self.dropped, f"{with_it:.1f} ms with it, {without_it:.1f} ms without it"
        if with_it > WORTH * without_it:
            self._retries[suspect] = 2 * self._retries.get(suspect, RETRIED // 2)
            self._due[suspect] = self._seen + self._retries[suspect]
            self.dropped[suspect] = f"{self._names[suspect]} is left out: {samples} samples took {numbers}"
            logger.log(logging.INFO if was_out else logging.WARNING, "weft: %s", self.dropped[suspect])
            self._suspect = self._slow_one()
        elif was_out:
            del self.dropped[suspect], self._due[suspect]
            logger.warning("weft: %s is used again: %s samples took %s", self._names[suspect], samples, numbers)


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
        answers = functional_call(net, buffers, tuple(part) if isinstance(part, Fields) else (part,))
    visible = sum(leaf.nbytes for leaf in tensors_in((answers, part)))
    return max(sum(kept.values()), visible, 1) / max(1, samples_in(part))
