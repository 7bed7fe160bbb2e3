"""Offer what the listings of the chapter use under the names that it has there: helpers, and the networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.train.data import Batches, load_fashion_mnist
from weft.train.devices.shares import split_and_load
from weft.train.evaluate import correct, evaluate


def mlp(inputs: int = 512, hidden: Sequence[int] = (256, 128), outputs: int = 2) -> nn.Sequential:
    """Make a multilayer perceptron with ReLU between its layers."""
    sizes = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class LeNet(nn.Module):
    """Two convolutions with average pooling, two dense layers: for images of 28 x 28 with one channel."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 20, 3)
        self.second = nn.Conv2d(20, 50, 5)
        self.hidden = nn.Linear(800, 128)
        self.output = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give the score of each class for each image."""
        x = functional.avg_pool2d(self.first(x).relu(), 2)
        x = functional.avg_pool2d(self.second(x).relu(), 2)
        scores: Tensor = self.output(self.hidden(x.flatten(1)).relu())
        return scores


class ResidualBlock(nn.Module):
    """Two convolutions whose result is added to what came in; with other sizes, to a convolution of it."""

    def __init__(self, channels: int, results: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, results, 3, stride=stride, padding=1)
        self.first_norm = nn.BatchNorm2d(results)
        self.second = nn.Conv2d(results, results, 3, padding=1)
        self.second_norm = nn.BatchNorm2d(results)
        same = stride == 1 and channels == results
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, results, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Transform a batch of images."""
        y = self.first_norm(self.first(x)).relu()
        sum_of_both: Tensor = self.second_norm(self.second(y)) + self.shortcut(x)
        return sum_of_both.relu()


def resnet18(classes: int = 10, channels: int = 1) -> nn.Sequential:
    """Make the chapter's ResNet-18: for small images, so a stem of 3 x 3 and no pooling before the blocks."""
    blocks: list[nn.Module] = []
    for before, after in ((64, 64), (64, 128), (128, 256), (256, 512)):
        blocks += [ResidualBlock(before, after, stride=1 if before == after else 2), ResidualBlock(after, after)]
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


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
