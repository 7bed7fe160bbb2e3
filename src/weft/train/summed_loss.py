"""A loss function as users write it -> the sum over samples (or tokens), and over how many."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from weft.errors import UsageError

Summed = tuple[torch.Tensor, torch.Tensor | float]


def summed_loss(loss_fn: Any, answers: Any, y: torch.Tensor) -> Summed:
    """Give the loss of one device as a sum and a count, so that the sums of all devices are divided once.

    A function gives the mean over its samples, or a pair of a sum and a count. Of PyTorch's classes, those that weigh
    or leave out labels are counted as they count.
    """
    if isinstance(loss_fn, nn.CrossEntropyLoss | nn.NLLLoss) and not y.is_floating_point():
        return _of_labels(loss_fn, answers, y)
    loss = loss_fn(answers, y)
    if isinstance(loss, tuple):
        return loss
    reduction = getattr(loss_fn, "reduction", "mean")
    if reduction == "sum":
        return loss, float(len(y))
    if reduction == "none":
        return loss.sum(), float(loss.numel())
    if loss.ndim:
        raise UsageError(
            f"the loss has the shape {list(loss.shape)}", fix="give its mean, or a pair of its sum and its count"
        )
    return loss * len(y), float(len(y))


def _of_labels(loss_fn: nn.CrossEntropyLoss | nn.NLLLoss, answers: torch.Tensor, y: torch.Tensor) -> Summed:
    counted = y != loss_fn.ignore_index
    weights = loss_fn.weight
    count = counted.sum() if weights is None else weights.to(y.device)[y.where(counted, 0)][counted].sum()
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
