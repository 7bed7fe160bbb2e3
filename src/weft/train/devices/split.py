"""A batch -> a piece for each device, of equal sizes, of given shares, or by measured speed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from weft.devices import Device
from weft.errors import UsageError
from weft.train.devices.batch import moved, samples_in, samples_of, split_tree
from weft.train.devices.choose_devices import find_devices
from weft.train.devices.measured_shares import finish
from weft.train.devices.threads import run_on

Shares = str | Sequence[float]
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
TRIAL_SIZE = 384
TRIALS = 3
_speeds: dict[tuple[Device, ...], list[float]] = {}


def split_and_load(data: Any, devices: Any, shares: Shares = "equal") -> list[Any]:
    """Split a batch along its first dimension, and put each piece where its device computes.

    A batch is a tensor, or a dictionary, list or tuple of them, and so is a piece.

    `shares` is "equal" (sizes differ by one at most), a list of numbers such as `[3, 1]`, or "measured": by the speed
    of the devices, working at once, at a product of matrices. A piece on the CPU is a view of the batch, not a copy.
    """
    places = find_devices(devices)
    return load_pieces(data, places, split_sizes(samples_in(data), resolved_shares(places, shares)))


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
