"""Count the samples of a batch, and split it over devices: evenly, or by the speed measured and the memory there is."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from weft.devices import Device
from weft.errors import UsageError, counted
from weft.tracebacks import shows_less
from weft.train.devices.choose_devices import find_devices
from weft.train.devices.threads import finish, run_on

Shares = str | Sequence[float]
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
TRIAL_SIZE = 384
TRIALS = 3
_speeds: dict[tuple[Device, ...], list[float]] = {}


class Fields(tuple[Any, ...]):
    """Several inputs of a module, in their order."""

    __slots__ = ()


pytree.register_pytree_node(Fields, lambda fields: (list(fields), None), lambda leaves, _: Fields(leaves))


def pair_of(batch: Any) -> tuple[Any, Any]:
    """Take a batch apart into what the module is given and what the loss compares its answers with."""
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        *inputs, targets = batch
        return inputs[0] if len(inputs) == 1 else Fields(inputs), targets
    size = f" of {len(batch)}" if isinstance(batch, tuple | list | dict) else ""
    raise UsageError(
        f"a batch is inputs and targets; this one is a {type(batch).__name__}{size}",
        why="the module is called with all but the last, and the loss with the answers and the last",
        fix="give (x, y) or (x1, x2, y); each may be a dictionary, list or tuple of tensors",
    )


def called(net: Any, x: Any) -> Any:
    """Call a module with its one input, or with several."""
    return net(*x) if isinstance(x, Fields) else net(x)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """List the tensors of a tree."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def samples_in(*trees: Any) -> int:
    """Count samples: the length of the first tensor that has a dimension."""
    if isinstance(trees[0], torch.Tensor) and trees[0].ndim:
        return len(trees[0])
    for leaf in tensors_in(trees):
        if leaf.ndim:
            return len(leaf)
    raise UsageError(
        f"there is no batch to split: no tensor with a dimension is in a {type(trees[0]).__name__}",
        fix="make tensors of it: torch.as_tensor(...)",
    )


def samples_of(x: Any, y: Any) -> int:
    """Count the samples of inputs and targets, which must be as many; there may be no targets."""
    count = samples_in(x, y)
    labels = count if y is None else samples_in(y)
    if labels != count:
        raise UsageError(f"there are {counted(count, 'sample')} and {counted(labels, 'label')}")
    return count


def split_tree(tree: Any, sizes: Sequence[int]) -> list[Any]:
    """Split every tensor that has a row for each sample; whatever else there is goes into each part as it is."""
    sizes = list(sizes)
    count = sum(sizes)
    leaves, structure = pytree.tree_flatten(tree)
    parts = [
        leaf.split(sizes)
        if isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == count
        else [leaf] * len(sizes)
        for leaf in leaves
    ]
    return [pytree.tree_unflatten([part[place] for part in parts], structure) for place in range(len(sizes))]


def moved(tree: Any, device: torch.device, *, copy: bool = False) -> Any:
    """Put every tensor on a device."""
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(device, non_blocking=True, copy=copy), tree)


def joined(parts: Sequence[Any]) -> Any:
    """Put trees of one structure together, tensors by their samples; what else is in them must be alike."""
    flat = [pytree.tree_flatten(part) for part in parts]
    if any(structure != flat[0][1] for _, structure in flat):
        raise UsageError("the batches' answers have different structures", fix="give the same ones for every batch")
    leaves = [_joined_leaves(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)]
    return pytree.tree_unflatten(leaves, flat[0][1])


def _joined_leaves(leaves: Sequence[Any]) -> Any:
    if not isinstance(leaves[0], torch.Tensor):
        return leaves[0] if all(leaf == leaves[0] for leaf in leaves) else list(leaves)
    return torch.cat([leaf if leaf.ndim else leaf[None] for leaf in leaves])


@shows_less
def split_and_load(data: Any, devices: Any, shares: Shares = "equal") -> list[Any]:
    """Split a batch along its first dimension, and put each piece where its device computes.

    A batch is a tensor, or a dictionary, list or tuple of them, and so is a piece.

    `shares` is "equal" (sizes differ by one at most), a list of numbers such as `[3, 1]`, or "measured": by the speed
    of the devices, working at once, at a product of matrices. A piece on the CPU is a view of the batch, not a copy.
    """
    places = find_devices(devices)
    return load_pieces(data, places, split_sizes(samples_in(data), resolved_shares(places, shares)))


@shows_less
def split_batch(x: Any, y: Any, devices: Any, shares: Shares = "equal") -> tuple[list[Any], list[Any]]:
    """Split samples and their labels alike."""
    places = find_devices(devices)
    sizes = split_sizes(samples_of(x, y), resolved_shares(places, shares))
    return load_pieces(x, places, sizes), load_pieces(y, places, sizes)


def load_pieces(data: Any, places: Sequence[Device], sizes: Sequence[int]) -> list[Any]:
    """Split a batch into pieces of these sizes, and put each where its device computes."""
    return [moved(piece, place.torch_device) for piece, place in zip(split_tree(data, sizes), places, strict=True)]


def split_sizes(count: int, shares: Sequence[float]) -> list[int]:
    """Divide a count in proportion to shares: the parts add up to it, and each is less than one from its share."""
    total = math.fsum(shares)
    if not shares or min(shares) < 0 or not 0 < total < math.inf:
        raise UsageError(f"the shares {list(shares)} say nothing", why="they are positive numbers, some may be zero")
    exact = [count * share / total for share in shares]
    sizes = [min(count, math.floor(size)) for size in exact]
    # What is left goes to those that lost most by rounding down; of equals, to the first.
    order = sorted(range(len(shares)), key=lambda index: (sizes[index] - exact[index], index))
    for index in order[: count - sum(sizes)]:
        sizes[index] += 1
    return sizes


def training_sizes(net: nn.Module, count: int, shares: Sequence[float]) -> list[int]:
    """The same for a module: while its batch norm trains, no part is a single sample: it could not normalise that."""
    sizes = split_sizes(count, shares)
    trains = any(isinstance(part, BATCH_NORMS) and part.training for part in net.modules())
    return no_single_sample(sizes) if trains else sizes


def no_single_sample(sizes: Sequence[int]) -> list[int]:
    """The same samples divided so that no part is a single one, if there are two: single ones are put together."""
    merged = list(sizes)
    single = [index for index, size in enumerate(merged) if size == 1]
    for first, second in zip(single[::2], single[1::2], strict=False):
        merged[first], merged[second] = 2, 0
    if len(single) % 2 and sum(merged) > 1:
        merged[single[-1]] = 0
        merged[next(index for index, size in enumerate(merged) if size)] += 1
    return merged


def resolved_shares(places: Sequence[Device], shares: Shares) -> Sequence[float]:
    """Give a number for each device."""
    if shares == "equal":
        return [1.0] * len(places)
    if shares == "measured":
        return measured_speeds(places)
    if isinstance(shares, str) or len(shares) != len(places):
        raise UsageError(
            f"shares={shares!r} for {len(places)} devices", fix='"equal", "measured", or a number for each device'
        )
    return shares


def measured_speeds(places: Sequence[Device]) -> list[float]:
    """Measure how fast each device is while all of them work; once in a process for the same devices."""
    key = tuple(places)
    if key not in _speeds:
        trials = [run_on([partial(_trial, place) for place in places], places) for _ in range(TRIALS + 1)]
        _speeds[key] = [1 / min(seconds) for seconds in zip(*trials[1:], strict=True)]
    return _speeds[key]


def _trial(place: Device) -> float:
    matrix = torch.ones(TRIAL_SIZE, TRIAL_SIZE, device=place.torch_device)
    finish(place)
    start = time.perf_counter()
    for _ in range(4):
        matrix @ matrix
    finish(place)
    return time.perf_counter() - start


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
