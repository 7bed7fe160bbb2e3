"""A network and data -> how many answers are right, computed on several devices without padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from weft.train.checkpoints.canonical import unwrapped
from weft.train.devices.batch import pair_of, samples_in, samples_of
from weft.train.devices.choose_devices import find_devices
from weft.train.devices.split import Shares, split_batch
from weft.train.devices.threads import run_on

Measure = Callable[[Any, Any], Any]


def correct(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Count the samples whose highest score is that of their label."""
    return (scores.argmax(dim=1) == labels).sum()


def evaluate(
    net: Callable[[Any], Any],
    batches: Iterable[Any],
    devices: Any = None,
    *,
    measure: Measure = correct,
    shares: Shares = "equal",
) -> float:
    """Give the mean of a measure over all samples: by default the share of right answers.

    `measure` gives a sum over samples; only sums travel between devices. A module is evaluated in evaluation mode, and
    each of its parts is in the mode that it was in afterwards.
    """
    total, count = sums_over(net, batches, devices, measure=measure, shares=shares)
    return total.item() / count if count else float("nan")


def sums_over(
    net: Callable[[Any], Any],
    batches: Iterable[Any],
    devices: Any = None,
    *,
    measure: Measure = correct,
    shares: Shares = "equal",
) -> tuple[torch.Tensor, int]:
    """Give the sum of a measure over all samples, or the sums of several numbers, and the number of samples."""
    if devices is not None and isinstance(net, nn.Module):
        net = unwrapped(net)  # a wrapper would split each device's part again
    places = find_devices(devices) if devices is not None else [_home(net)]
    modes = [(part, part.training) for part in net.modules()] if isinstance(net, nn.Module) else []
    try:
        if isinstance(net, nn.Module):
            net.eval()
        nets = [net, *(_copy(net, place.torch_device) for place in places[1:])]
        total, count = torch.zeros(1, dtype=torch.float64), 0
        with torch.no_grad():
            for batch in batches:
                x, y = pair_of(batch)
                pieces = zip(nets, places, *split_batch(x, y, places, shares), strict=True)
                busy = [piece for piece in pieces if samples_in(*piece[2:])]
                work = [partial(_measured, measure, one, part, labels) for one, _, part, labels in busy]
                for found in run_on(work, [place for _, place, _, _ in busy]):
                    total = total + found
                count += samples_of(x, y)
    finally:
        for part, training in modes:
            part.training = training
    return total, count


def _measured(measure: Measure, net: Any, x: Any, y: Any) -> torch.Tensor:
    return torch.as_tensor(measure(net(x), y)).to("cpu", torch.float64).reshape(-1)


def _home(net: Any) -> Any:
    if isinstance(net, nn.Module):
        for parameter in net.parameters():
            return find_devices(parameter.device)[0]
    return find_devices("cpu")[0]


def _copy(net: Any, device: torch.device) -> Any:
    """A network for another device; a function computes where its arguments are."""
    return copy.deepcopy(net).to(device) if isinstance(net, nn.Module) else net
