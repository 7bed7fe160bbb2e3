"""Build the networks of the chapter: its multilayer perceptron, its LeNet, its ResNet-18."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional


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
