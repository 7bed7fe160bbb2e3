"""Compute a loss as users write it, as its sum over samples (or tokens) and their number."""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from weft.errors import UsageError
from weft.train.devices.shares import samples_in, tensors_in

Summed = tuple[torch.Tensor, torch.Tensor | float]
LOSS = "give its mean over samples, or a pair of its sum and its count"


# As functions they mean what these mean without options.
CLASSES: dict[Any, Any] = {functional.cross_entropy: nn.CrossEntropyLoss(), functional.nll_loss: nn.NLLLoss()}


def summed_loss(loss_fn: Any, answers: Any, y: Any) -> Summed:
    """Give the loss of one device as a sum and a count, so that the sums of all devices are divided once.

    A function gives the mean over its samples, or a pair of a sum and a count. Of PyTorch's classes, those that weigh
    or leave out labels are counted as they count, and so are their functions.
    """
    loss_fn = CLASSES.get(loss_fn, loss_fn) if isinstance(loss_fn, FunctionType) else loss_fn
    labelled = isinstance(y, torch.Tensor) and not y.is_floating_point()
    if isinstance(loss_fn, nn.CrossEntropyLoss | nn.NLLLoss) and labelled:
        return _of_labels(loss_fn, answers, y)
    loss = loss_fn(answers, y)
    if isinstance(loss, tuple):
        return _checked_pair(loss)
    if not isinstance(loss, torch.Tensor):
        raise UsageError(f"the loss is a {type(loss).__name__}, not a tensor", fix=LOSS)
    if loss.ndim:
        raise UsageError(f"the loss has the shape {list(loss.shape)}", fix=LOSS)
    samples = samples_in(y, answers)
    return loss if reduction_of(loss_fn) == "sum" else loss * samples, float(samples)


def reduction_of(loss_fn: Any) -> str:
    """Say what becomes of the losses of samples: "mean", "sum" or "none"; of a function of the user's, their mean."""
    held = loss_fn.keywords.get("reduction") if isinstance(loss_fn, partial) else getattr(loss_fn, "reduction", None)
    return held if isinstance(held, str) else "mean"


def nothing_of(answers: Any) -> torch.Tensor:
    """Give the loss of no samples: zero, with a gradient of zeros."""
    tensors = [answer for answer in tensors_in(answers) if answer.requires_grad]
    return sum((answer.sum() * 0 for answer in tensors[1:]), start=tensors[0].sum() * 0)


def _checked_pair(loss: tuple[Any, ...]) -> Summed:
    """A sum and a count: of anything else, the second would be taken for one."""
    numbers = len(loss) == 2 and isinstance(loss[0], torch.Tensor) and not loss[0].ndim
    if (
        not numbers
        or not isinstance(loss[1], torch.Tensor | float | int)
        or (torch.is_tensor(loss[1]) and loss[1].ndim)
    ):
        raise UsageError(f"the loss is a tuple of {', '.join(type(part).__name__ for part in loss)}", fix=LOSS)
    return loss[0], loss[1]


def _of_labels(loss_fn: nn.CrossEntropyLoss | nn.NLLLoss, answers: torch.Tensor, y: torch.Tensor) -> Summed:
    counted = y != loss_fn.ignore_index
    weights = loss_fn.weight
    count = counted.sum() if weights is None else weights.to(y.device)[y.where(counted, 0)].where(counted, 0).sum()
    if isinstance(loss_fn, nn.NLLLoss):
        loss = functional.nll_loss(answers, y, weights, ignore_index=loss_fn.ignore_index, reduction="sum")
    else:
        loss = functional.cross_entropy(
            answers,
            y,
            weights,
            ignore_index=loss_fn.ignore_index,
            reduction="sum",
            label_smoothing=loss_fn.label_smoothing,
        )
    return loss, count
