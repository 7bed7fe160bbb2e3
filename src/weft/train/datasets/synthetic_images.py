"""A seed -> images of ten made-up classes in the shape of Fashion-MNIST: for trials where there is no network.

Each class is a smooth pattern. A sample is its class's pattern, shifted, mixed with that of another class, in another
contrast, under noise: so a network has something to learn over epochs, and no network gets all of it right.
"""

from __future__ import annotations

import torch
from torch.nn import functional

CLASSES = 10
SIDE = 28
LARGEST_SHIFT = 4
LARGEST_SHARE = 0.62  # of another class: above a half it is the pattern that is seen more
NOISE = 0.35
PIECE = 4096


def synthetic_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give images as bytes (count, 28, 28) and labels; the patterns are the same for every seed."""
    patterns = _patterns()
    generator = torch.Generator().manual_seed(seed)
    pieces = [_samples(patterns, min(PIECE, count - start), generator) for start in range(0, count, PIECE)]
    empty = (torch.empty(0, SIDE, SIDE, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8))
    images, labels = zip(*pieces, strict=True) if pieces else ((empty[0],), (empty[1],))
    return torch.cat(images), torch.cat(labels)


def _patterns() -> torch.Tensor:
    """Ten smooth random pictures, with a margin to be shifted in."""
    coarse = torch.randn(CLASSES, 1, 7, 7, generator=torch.Generator().manual_seed(20))
    side = SIDE + 2 * LARGEST_SHIFT
    return functional.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=True)[:, 0]


def _samples(patterns: torch.Tensor, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(CLASSES, (count,), generator=generator)
    others = (labels + torch.randint(1, CLASSES, (count,), generator=generator)) % CLASSES
    share = torch.rand(count, 1, 1, generator=generator) * LARGEST_SHARE
    contrast = 0.6 + 0.8 * torch.rand(count, 1, 1, generator=generator)
    mixed = (1 - share) * _shifted(patterns, labels, generator) + share * _shifted(patterns, others, generator)
    noisy = contrast * mixed + NOISE * torch.randn(count, SIDE, SIDE, generator=generator)
    return ((noisy * 50 + 100).clamp(0, 255)).to(torch.uint8), labels.to(torch.uint8)


def _shifted(patterns: torch.Tensor, labels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    rows, columns = torch.randint(2 * LARGEST_SHIFT + 1, (2, len(labels), 1), generator=generator)
    steps = torch.arange(SIDE)
    return patterns[labels[:, None, None], (rows + steps)[:, :, None], (columns + steps)[:, None, :]]
