"""Networks with branches side by side: equal towers, and two inception blocks of GoogLeNet."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Towers(nn.Module):
    """Equal stacks of three linear layers on one input, joined by a linear layer."""

    def __init__(self, towers: int = 8, width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, width),
                nn.Tanh(),
            )
            for _ in range(towers)
        )
        self.join = nn.Linear(towers * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all towers, then join what they give."""
        return self.join(torch.cat([tower(x) for tower in self.towers], dim=1))


class Inception(nn.Module):
    """GoogLeNet's block: four paths whose channels are put together."""

    def __init__(self, channels_in: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels_in, one, 1)
        self.three_before = nn.Conv2d(channels_in, three[0], 1)
        self.three = nn.Conv2d(three[0], three[1], 3, padding=1)
        self.five_before = nn.Conv2d(channels_in, five[0], 1)
        self.five = nn.Conv2d(five[0], five[1], 5, padding=2)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.pooled = nn.Conv2d(channels_in, pooled, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Run the four paths on the same images."""
        relu = functional.relu
        paths = (
            relu(self.one(images)),
            relu(self.three(relu(self.three_before(images)))),
            relu(self.five(relu(self.five_before(images)))),
            relu(self.pooled(self.pool(images))),
        )
        return torch.cat(paths, dim=1)


def inception_3a_3b() -> nn.Sequential:
    """Blocks 3a and 3b of GoogLeNet, from 192 channels to 480."""
    return nn.Sequential(
        Inception(192, 64, (96, 128), (16, 32), 32),
        Inception(256, 128, (128, 192), (32, 96), 64),
    )
