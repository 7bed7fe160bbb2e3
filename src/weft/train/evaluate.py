"""Evaluate a network over data on several devices without padding: accuracy, loss, or measures of the user's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from weft.devices import Device
from weft.errors import UsageError
from weft.tracebacks import shows_less
from weft.train.checkpoints.names import unwrapped
from weft.train.devices.choose_devices import device_of, find_devices
from weft.train.devices.shares import Shares, called, joined, moved, pair_of, samples_in, samples_of, split_batch
from weft.train.devices.threads import run_on
from weft.train.processes.peers import Peers
from weft.train.summed_loss import summed_loss

Measure = Callable[[Any, Any], Any]
ACCURACY, LOSS = "test_acc", "test_loss"


def correct(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Count the samples whose highest score is that of their label."""
    return (scores.argmax(dim=1) == labels).sum()


@shows_less
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
    places = find_devices(devices) if devices is not None else [device_of(net)]
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


@shows_less
def predict(net: Callable[..., Any], batches: Iterable[Any]) -> Any:
    """Give a network's answers to all batches, in evaluation mode and without gradients, put together on the CPU.

    A batch is a tensor or a dictionary that the network is called with, or fields: the only one, or as for training all
    but the last, which is the target. A tensor or a dictionary in the place of batches is the only batch.
    """
    if isinstance(batches, torch.Tensor | Mapping):
        batches = [batches]
    home = device_of(net).torch_device
    modes = [(part, part.training) for part in net.modules()] if isinstance(net, nn.Module) else []
    answers = []
    try:
        if isinstance(net, nn.Module):
            net.eval()
        with torch.no_grad():
            answers += [moved(called(net, moved(_inputs_of(batch), home)), torch.device("cpu")) for batch in batches]
    finally:
        for part, training in modes:
            part.training = training
    if not answers:
        raise UsageError("there was no batch to predict", why="the data is empty, or gives its batches only once")
    return joined(answers)


def _inputs_of(batch: Any) -> Any:
    """What a network is called with; loaders give a list also where there is one field alone."""
    if not isinstance(batch, tuple | list):
        return batch
    return batch[0] if len(batch) == 1 else pair_of(batch)[0]


def _measured(measure: Measure, net: Any, x: Any, y: Any) -> torch.Tensor:
    return torch.as_tensor(measure(called(net, x), y)).to("cpu", torch.float64).reshape(-1)


def _copy(net: Any, device: torch.device) -> Any:
    """A network for another device; a function computes where its arguments are."""
    return copy.deepcopy(net).to(device) if isinstance(net, nn.Module) else net


@dataclass(frozen=True)
class Evaluation:
    """Tests a module after each epoch; with processes, each takes every so many batches, and only sums travel.

    Without metrics of the user's: the share of right answers where the targets are a label for each score, else the
    loss.
    """

    net: nn.Module
    places: Sequence[Device]
    loss_fn: Any
    metrics: Mapping[str, Measure] | None
    peers: Peers | None

    def of(self, test: Iterable[Any]) -> dict[str, float]:
        """Give the figures by name."""
        batches = test
        if self.peers is not None:
            batches = (batch for index, batch in enumerate(test) if index % self.peers.world == self.peers.rank)
        kinds = 4 if self.metrics is None else len(self.metrics)
        found, count = sums_over(self.net, batches, self.places, measure=self._sums)
        sums = torch.cat([found if count else torch.zeros(kinds, dtype=torch.float64), torch.tensor([float(count)])])
        *values, samples = (sums if self.peers is None else self.peers.sum(sums)).tolist()
        if self.metrics is not None:
            return {name: _ratio(value, samples) for name, value in zip(self.metrics, values, strict=True)}
        right, loss, counted, labelled = values
        return {ACCURACY: _ratio(right, samples)} if labelled or not samples else {LOSS: _ratio(loss, counted)}

    def _sums(self, answers: Any, y: Any) -> torch.Tensor:
        if self.metrics is not None:
            return _numbers([measure(answers, y) for measure in self.metrics.values()])
        if _labels(answers, y):
            return _numbers([correct(answers, y), 0.0, 0.0, 1.0])
        return _numbers([0.0, *summed_loss(self.loss_fn, answers, y), 0.0])


def _labels(answers: Any, y: Any) -> bool:
    """Whether each target is the number of a class, for which there is a score each."""
    tensors = isinstance(answers, torch.Tensor) and isinstance(y, torch.Tensor)
    return (
        tensors
        and not (y.is_floating_point() or y.is_complex())
        and answers.ndim >= 2
        and y.shape == answers.shape[:1] + answers.shape[2:]
    )


def _numbers(values: Sequence[Any]) -> torch.Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


def _ratio(value: float, count: float) -> float:
    return value / count if count else float("nan")
