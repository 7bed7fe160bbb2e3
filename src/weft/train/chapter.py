"""Offer the helpers of the chapter's listings under the names that they have there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from weft.train.data import Batches, load_fashion_mnist
from weft.train.devices.shares import split_and_load
from weft.train.evaluate import correct, evaluate


def load_data_fashion_mnist(
    batch_size: int, resize: int | None = None, *, synthetic: bool = False, folder: str | Path | None = None
) -> tuple[Batches, Batches]:
    """Give minibatches of Fashion-MNIST for training and testing, of images scaled to `resize` pixels a side if given.

    `synthetic` gives made-up data in its shape, where there is no network; `folder` is where the files are kept.
    """
    return load_fashion_mnist(batch_size, resize=resize, synthetic=synthetic, folder=folder)


@torch.no_grad()
def sgd(params: Iterable[torch.Tensor], lr: float, batch_size: int) -> None:
    """Update parameters by minibatch stochastic gradient descent, and set their gradients to zero.

    The gradients are those of a sum over the batch; a parameter without one stays as it is.
    """
    for parameter in params:
        if parameter.grad is not None:
            parameter -= lr * parameter.grad / batch_size
            parameter.grad.zero_()


def accuracy(y_hat: torch.Tensor, y: torch.Tensor) -> float:
    """Count the right answers; of scores, the answer is the highest."""
    if y_hat.ndim > 1 and y_hat.shape[1] > 1:
        return float(correct(y_hat, y))
    return float((y_hat.reshape(-1).to(y.dtype) == y).sum())


def evaluate_accuracy(net: Callable[[Any], Any], data_iter: Iterable[Any]) -> float:
    """Give the share of right answers on data, computed where the network lies."""
    return evaluate(net, data_iter)


def evaluate_accuracy_gpu(net: Callable[[Any], Any], data_iter: Iterable[Any], device: Any = None) -> float:
    """Give the share of right answers on data, computed on a device, by default where the network lies."""
    return evaluate(net, data_iter, device)


def evaluate_accuracy_gpus(net: Callable[[Any], Any], data_iter: Iterable[Any], devices: Any = "all") -> float:
    """Give the share of right answers on data, computed on several devices: every sample counts once."""
    return evaluate(net, data_iter, devices)


def scatter(data: Any, devices: Any) -> list[Any]:
    """Split a batch evenly over devices: `weft.split_and_load` under PyTorch's name."""
    return split_and_load(data, devices)
