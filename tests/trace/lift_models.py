"""The whole models that lifting is tested with: name -> module and inputs, built anew at every call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Model = tuple[nn.Module, tuple[Any, ...]]


class Residual(nn.Module):
    """A ResNet block with a downsampling shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.norm2 = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.shortcut = nn.Conv2d(4, 6, 1, 2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm2(self.second(torch.relu(self.norm(self.first(x)))))
        mixed = torch.relu(inner + self.shortcut(x))
        return self.head(nn.functional.adaptive_avg_pool2d(mixed, 1).flatten(1))


class Inception(nn.Module):
    """An inception block: four branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(6, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(6, 3, 1), nn.ReLU(), nn.Conv2d(3, 5, 3, padding=1), nn.ReLU())
        self.five = nn.Sequential(nn.Conv2d(6, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 5, padding=2), nn.ReLU())
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(6, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = [torch.relu(self.one(x)), self.three(x), self.five(x), torch.relu(self.pool(x))]
        return torch.cat(branches, 1)


class Recurrent(nn.Module):
    """A recurrent network of one kind with a linear head."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.recurrent = kind(5, 4, **options)
        self.head = nn.Linear(8 if options.get("bidirectional") else 4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0])


class Factors(nn.Module):
    """Embeddings of several fields, their pairwise products, a linear part: DeepFM in small."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 4, padding_idx=0) for size in (5, 7, 3)])
        self.deep = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        embedded = torch.stack([table(fields[:, i]) for i, table in enumerate(self.tables)], 1)
        pairs = embedded.sum(1).square() - embedded.square().sum(1)
        return torch.sigmoid(0.5 * pairs.sum(1, keepdim=True) + self.deep(embedded.flatten(1)))


class Separable(nn.Module):
    """Depthwise convolution, group norm, hard activations, transposed convolution: MobileNet and U-Net in small."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.pointwise = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 8, 1)
        self.norm, self.up = nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 3, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.hardswish(self.norm(self.pointwise(nn.functional.relu6(self.depthwise(x)))))
        small = nn.functional.avg_pool2d(inner, 2)
        return self.up(nn.functional.interpolate(small, scale_factor=2)) * nn.functional.silu(x[:, :1].mean())


def perceptron() -> Model:
    layers = [nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers), (torch.randn(5, 12),)


def lenet() -> Model:
    layers = [nn.Conv2d(1, 4, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2, 2), nn.Conv2d(4, 6, 5), nn.Sigmoid()]
    layers += [nn.MaxPool2d(2, 2), nn.Flatten(), nn.Linear(6, 10), nn.Sigmoid(), nn.Linear(10, 4)]
    return nn.Sequential(*layers), (torch.randn(3, 1, 14, 14),)


def transformer() -> Model:
    options = {"dropout": 0.0, "batch_first": True}
    return nn.TransformerEncoderLayer(16, 4, 32, **options), (torch.randn(2, 6, 16),)


MODELS: dict[str, Callable[[], Model]] = {
    "perceptron": perceptron,
    "lenet": lenet,
    "residual": lambda: (Residual(), (torch.randn(3, 4, 9, 9),)),
    "inception": lambda: (Inception(), (torch.randn(2, 6, 7, 7),)),
    "transformer": transformer,
    "lstm": lambda: (Recurrent(nn.LSTM, num_layers=2), (torch.randn(4, 3, 5),)),
    "lstm both ways": lambda: (Recurrent(nn.LSTM, bidirectional=True, batch_first=True), (torch.randn(3, 4, 5),)),
    "gru": lambda: (Recurrent(nn.GRU), (torch.randn(4, 3, 5),)),
    "gru both ways": lambda: (Recurrent(nn.GRU, bidirectional=True, num_layers=2), (torch.randn(4, 3, 5),)),
    "rnn": lambda: (Recurrent(nn.RNN, bias=False), (torch.randn(4, 3, 5),)),
    "rnn with relu": lambda: (Recurrent(nn.RNN, nonlinearity="relu", batch_first=True), (torch.randn(3, 4, 5),)),
    "factors": lambda: (Factors(), (torch.randint(0, 3, (6, 3)),)),
    "separable": lambda: (Separable(), (torch.randn(2, 4, 8, 8),)),
}
