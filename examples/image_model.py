"""An image model as timm has them, imperatively and hybridized: the same answers, in less time."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

import weft

ROUNDS = 9


class Block(nn.Module):
    """A depthwise convolution, normalised, and two linear layers over the channels: a block of ConvNeXt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(torch.full((width,), 1e-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the block finds to what it was given."""
        found = self.channels(self.norm(self.spatial(x).permute(0, 2, 3, 1)))
        return x + (self.scale * found).permute(0, 3, 1, 2)


class ImageModel(nn.Module):
    """Patches, blocks, a mean over the image, and classes."""

    def __init__(self, width: int = 48, depth: int = 3, classes: int = 100) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Classify images."""
        return self.head(self.blocks(self.patches(images)).mean((2, 3)))


def milliseconds(net: nn.Module, images: torch.Tensor) -> float:
    """Give the time of one call."""
    start = time.perf_counter()
    net(images)
    return (time.perf_counter() - start) * 1e3


@torch.no_grad()
def main() -> None:
    """Compare the two on one batch; the same weights are in both."""
    torch.manual_seed(0)
    eager, hybrid = ImageModel().eval(), ImageModel().eval()
    hybrid.load_state_dict(eager.state_dict())
    weft.hybridize(hybrid)  # the one line that changes

    images = torch.randn(2, 3, 96, 96)
    expected, found = eager(images), hybrid(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    print(f"answers agree: the largest difference is {(found - expected).abs().max().item():.1e}")

    # In turn, so that a busy machine is as unfair to one as to the other.
    pairs = [(milliseconds(eager, images), milliseconds(hybrid, images)) for _ in range(ROUNDS)]
    before, after = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"a batch of {len(images)}: eager {before:.2f} ms, hybridized {after:.2f} ms")
    print(f"hybridized is {before / after:.2f} times as fast here")
    print(weft.explain(hybrid))


if __name__ == "__main__":
    main()
