"""Count the samples of a batch, and split it over devices: evenly, by given shares, or by measured speed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

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
