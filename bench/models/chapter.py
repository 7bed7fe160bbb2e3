"""The chapter's own programs: its multilayer perceptron, LeNet, ResNet-18, `fancy_func` and an elementwise chain."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(itertools.pairwise(widths)):
        layers += [nn.ReLU()] if index else []
        layers.append(nn.Linear(before, after))
    return nn.Sequential(*layers)


def lenet() -> nn.Sequential:
    """LeNet as the chapter trains it from scratch: 20 and 50 channels, average pooling, 28 x 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 3),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Flatten(),
        nn.Linear(800, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Residual(nn.Module):
    """Two 3 x 3 convolutions with batch norm beside a direct path."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, padding=1, stride=stride)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second_norm = nn.BatchNorm2d(channels)
        changes = stride != 1 or channels_in != channels
        self.direct = nn.Conv2d(channels_in, channels, 1, stride=stride) if changes else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Add what the convolutions find to the images."""
        found = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(self.second_norm(self.second(found)) + self.direct(images))


def resnet18(channels_in: int = 1, classes: int = 10) -> nn.Sequential:
    """ResNet-18 in the chapter's variant: a 3 x 3 stem and no pooling after it."""
    blocks: list[nn.Module] = []
    before = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        blocks += [Residual(before, channels, stride=2 if stage else 1), Residual(channels, channels)]
        before = channels
    return nn.Sequential(
        nn.Conv2d(channels_in, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Add two tensors, as the chapter's first listing does."""
    return left + right


def fancy_func(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Add four tensors in three calls: a measure of what a call costs."""
    e = add(a, b)
    f = add(c, d)
    return add(e, f)


def elementwise_chain(x: torch.Tensor) -> torch.Tensor:
    """Apply ten elementwise operators one after the other."""
    y = x * 0.5
    y = y + 1.0
    y = torch.tanh(y)
    y = y * x
    y = torch.sigmoid(y)
    y = y - 0.25
    y = torch.relu(y)
    y = torch.sqrt(y)
    y = y + x
    return torch.abs(y)
