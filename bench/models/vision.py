"""Public families of image networks, small: MobileNet, SqueezeNet, DenseNet, U-Net and a variational encoder."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _conv(channels_in: int, channels: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(channels_in, channels, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(channels)]


class InvertedResidual(nn.Module):
    """MobileNet's second block: widen by 1 x 1, filter each channel by 3 x 3, narrow by 1 x 1."""

    def __init__(self, channels_in: int, channels: int, stride: int, widening: int) -> None:
        super().__init__()
        wide = channels_in * widening
        widen = [*_conv(channels_in, wide, 1), nn.ReLU6()] if widening != 1 else []
        depthwise = [*_conv(wide, wide, 3, stride, groups=wide), nn.ReLU6()]
        self.layers = nn.Sequential(*widen, *depthwise, *_conv(wide, channels, 1))
        self.adds = stride == 1 and channels_in == channels

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Run the three convolutions, and add the images where the shapes allow."""
        found = self.layers(images)
        return images + found if self.adds else found


def mobilenet(classes: int = 100) -> nn.Sequential:
    """MobileNet of the second version, with its published widths and strides."""
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    layers: list[nn.Module] = [*_conv(3, 32, 3, stride=2), nn.ReLU6()]
    before = 32
    for widening, channels, repeats, stride in rows:
        for index in range(repeats):
            layers.append(InvertedResidual(before, channels, 1 if index else stride, widening))
            before = channels
    layers += [*_conv(before, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)]
    return nn.Sequential(*layers)


class Fire(nn.Module):
    """SqueezeNet's block: squeeze by 1 x 1, expand by 1 x 1 and 3 x 3 side by side."""

    def __init__(self, channels_in: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels_in, squeezed, 1)
        self.one = nn.Conv2d(squeezed, expanded, 1)
        self.three = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Squeeze once, expand twice."""
        few = functional.relu(self.squeeze(images))
        return torch.cat([functional.relu(self.one(few)), functional.relu(self.three(few))], dim=1)


def squeezenet(classes: int = 100) -> nn.Sequential:
    """SqueezeNet 1.1."""
    pool = (3, 2)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(*pool, ceil_mode=True),
        *(Fire(64, 16, 64), Fire(128, 16, 64), nn.MaxPool2d(*pool, ceil_mode=True)),
        *(Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(*pool, ceil_mode=True)),
        *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
        nn.Conv2d(512, classes, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class DenseLayer(nn.Module):
    """DenseNet's layer: its result is put beside everything before it."""

    def __init__(self, channels_in: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels_in),
            nn.ReLU(),
            nn.Conv2d(channels_in, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Put new channels after those that came."""
        return torch.cat([images, self.layers(images)], dim=1)


def densenet(blocks: tuple[int, ...] = (4, 6, 8), growth: int = 24, classes: int = 100) -> nn.Sequential:
    """A DenseNet with a transition, which halves channels and size, between its blocks."""
    channels = 2 * growth
    layers: list[nn.Module] = [*_conv(3, channels, 3), nn.ReLU()]
    for index, length in enumerate(blocks):
        if index:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
        for _ in range(length):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A network that goes down four scales and up again, with each scale's channels handed across."""

    def __init__(self, channels_in: int = 3, base: int = 16, classes: int = 4) -> None:
        super().__init__()
        widths = [base, 2 * base, 4 * base, 8 * base]
        self.down = nn.ModuleList(self._twice(a, b) for a, b in zip([channels_in, *widths], widths, strict=False))
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.up = nn.ModuleList(self._twice(2 * a, a) for a in widths[-2::-1])
        self.head = nn.Conv2d(base, classes, 1)

    @staticmethod
    def _twice(channels_in: int, channels: int) -> nn.Sequential:
        return nn.Sequential(*_conv(channels_in, channels, 3), nn.ReLU(), *_conv(channels, channels, 3), nn.ReLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give the scores of the classes at every pixel."""
        handed: list[torch.Tensor] = []
        for index, down in enumerate(self.down):
            images = down(functional.max_pool2d(images, 2) if index else images)
            handed.append(images)
        handed.pop()
        for enlarge, up in zip(self.enlarge, self.up, strict=True):
            images = up(torch.cat([handed.pop(), enlarge(images)], dim=1))
        return self.head(images)


class VariationalEncoder(nn.Module):
    """A convolutional encoder to a distribution and a decoder of its mean, on 28 x 28 images."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2, padding=1), nn.ReLU()
        )
        self.mean = nn.Linear(64 * 49, hidden)
        self.log_variance = nn.Linear(64 * 49, hidden)
        self.widen = nn.Linear(hidden, 64 * 49)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
        )

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Give the images made again, and the mean and log variance of what they were made from."""
        features = self.encoder(images).flatten(1)
        mean = self.mean(features)
        wide = functional.relu(self.widen(mean)).unflatten(1, (64, 7, 7))
        return torch.sigmoid(self.decoder(wide)), mean, self.log_variance(features)
