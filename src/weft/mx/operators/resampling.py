"""Give images, whose channels lie last, other sizes: the pixels that OpenCV's five ways of resampling give.

Images of whole numbers are resampled with weights in steps of 1/2048, as there: so their last bits are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import computes

STEPS = 2048  # weights of whole images are multiples of 1 / STEPS
NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)
STEEPNESS = -0.75  # of the cubic polynomials


def _linear(x: Tensor) -> Tensor:
    return torch.stack([1 - x, x], -1)


def _cubic(x: Tensor) -> Tensor:
    a = STEEPNESS
    far = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    other = ((a + 2) * (1 - x) - (a + 3)) * (1 - x) * (1 - x) + 1
    return torch.stack([far, near, other, 1 - far - near - other], -1)


def _lanczos(x: Tensor) -> Tensor:
    """Eight weights, which are sinc(d) sinc(d / 4) of their distances, made to add up to 1."""
    distance = (x.unsqueeze(-1) + 3 - torch.arange(8)) * (math.pi / 4)
    found = torch.sin(distance * 4) * torch.sin(distance) / torch.where(distance == 0, 1.0, distance) ** 2
    found = found / found.sum(-1, keepdim=True)
    whole = functional.one_hot(torch.full(x.shape, 3), 8).to(x.dtype)
    return torch.where((x < torch.finfo(torch.float32).eps).unsqueeze(-1), whole, found)


# Of each way that takes neighbours: their weights, and how many of them lie before the place.
TAPS: dict[int, tuple[Callable[[Tensor], Tensor], int]] = {
    LINEAR: (_linear, 0),
    CUBIC: (_cubic, 1),
    LANCZOS: (_lanczos, 3),
}


def _places(way: int, old: int, new: int, *, ends: bool) -> tuple[Tensor, Tensor]:
    """Which pixels of an axis each new one takes, and with which weights: (new, neighbours) each.

    `ends`: beyond the edge a pixel has one neighbour, else twice the same, which is not the same in whole numbers.
    """
    scale, line = old / new, torch.arange(new, dtype=torch.float64)
    if way == AREA:  # of an axis that grows: the next pixel begins where it begins
        at = torch.floor(line * scale)
        share = (line + 1) - (at + 1) / scale
        share = torch.where(share <= 0, 0.0, share - torch.floor(share))
    else:
        at = ((line + 0.5) * scale - 0.5).to(torch.float32).to(torch.float64)
        share = at - torch.floor(at)
        at = torch.floor(at)
    weigh, before = TAPS[LINEAR if way == AREA else way]
    if before == 0 and ends:
        share = torch.where((at < 0) | (at >= old - 1), 0.0, share)
    weights = weigh(share.to(torch.float32))
    places = at.to(torch.int64).unsqueeze(1) + torch.arange(weights.shape[1]) - before
    return places.clamp(0, old - 1), weights


def _mixed(way: int, x: Tensor, height: int, width: int) -> Tensor:
    """Rows and columns as sums of neighbours."""
    across, across_weights = _places(way, x.shape[1], width, ends=True)
    down, down_weights = _places(way, x.shape[0], height, ends=False)
    if x.is_floating_point():
        rows = (x[:, across] * across_weights.unsqueeze(-1).to(x.dtype)).sum(2)
        return (rows[down] * down_weights[..., None, None].to(x.dtype)).sum(1)
    across_whole, down_whole = (torch.round(each * STEPS).to(torch.int64) for each in (across_weights, down_weights))
    rows = (x[:, across].to(torch.int64) * across_whole.unsqueeze(-1)).sum(2)
    if way in (LINEAR, AREA):
        found = ((((rows[down] >> 4) * down_whole[..., None, None]) >> 16).sum(1) + 2) >> 2
    else:
        found = ((rows[down] * down_whole[..., None, None]).sum(1) + (1 << 21)) >> 22
    return found.clamp(0, 255).to(x.dtype)


def _shares(old: int, new: int) -> Tensor:
    """How much of each old pixel lies in each new, larger one: (new, old), rows add up to 1."""
    edges = torch.arange(new + 1, dtype=torch.float64) * (old / new)
    pixel = torch.arange(old, dtype=torch.float64)
    inside = torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)
    return inside.clamp(min=0) / (old / new)


def _averaged(x: Tensor, height: int, width: int) -> Tensor:
    """Each new pixel is the mean of the area that it covers."""
    down, across = _shares(x.shape[0], height), _shares(x.shape[1], width)
    found = torch.einsum("ya,abc,xb->yxc", down, x.to(torch.float64), across)
    if x.is_floating_point():
        return found.to(x.dtype)
    halves_up = x.shape[0] == 2 * height and x.shape[1] == 2 * width
    return (torch.floor(found + 0.5) if halves_up else torch.round(found)).clamp(0, 255).to(x.dtype)


def resized(x: Tensor, height: int, width: int, way: int) -> Tensor:
    """One image of (rows, columns, channels) in other sizes."""
    if (height, width) == tuple(x.shape[:2]):
        return x.clone()
    if x.device.type == "meta":
        return x.new_empty(height, width, x.shape[2])
    if way == NEAREST:
        rows, columns = (
            torch.floor(torch.arange(new, dtype=torch.float64) * (old / new)).to(torch.int64).clamp(max=old - 1)
            for old, new in zip(x.shape, (height, width), strict=False)
        )
        return x[rows][:, columns]
    if way == AREA and height <= x.shape[0] and width <= x.shape[1]:
        return _averaged(x, height, width)
    return _mixed(way, x, height, width)


def _way(interp: int, x: Tensor, height: int, width: int) -> int:
    """Which way a number of MXNet means: 9 chooses by whether the image grows."""
    if interp == 9:
        if height > x.shape[0] and width > x.shape[1]:
            return CUBIC
        return AREA if height < x.shape[0] and width < x.shape[1] else LINEAR
    if interp not in range(5):
        raise MXNetError(f"Check failed: unknown interpolation method {interp}")
    return interp


@computes("_cvimresize")
def resize_image(p: Any, x: Tensor) -> Tensor:
    """One image in other sizes."""
    return resized(x, p.h, p.w, _way(p.interp, x, p.h, p.w))


@computes("_image_resize")
def resize_images(p: Any, x: Tensor) -> Tensor:
    """An image, or several, in other sizes."""
    width, height = (p.size[0], p.size[0]) if len(p.size) == 1 else p.size
    if p.keep_ratio and len(p.size) == 1:
        old_height, old_width = x.shape[-3], x.shape[-2]
        short = min(old_height, old_width)
        width, height = old_width * p.size[0] // short, old_height * p.size[0] // short
    if x.dim() == 3:
        return resized(x, height, width, _way(p.interp, x, height, width))
    return torch.stack([resized(each, height, width, _way(p.interp, each, height, width)) for each in x])


def _mirrored(places: Tensor, size: int, *, twice: bool) -> Tensor:
    """Places beyond an axis as those that a mirror at its edge shows; `twice`: the edge's own pixel too."""
    if size == 1:
        return torch.zeros_like(places)
    period = 2 * size if twice else 2 * size - 2
    inside = torch.remainder(places, period)
    return torch.where(inside < size, inside, period - inside - (1 if twice else 0))


# Of each kind of border but the constant: which pixel of an axis stands for a place.
BORDERS: dict[int, Callable[[Tensor, int], Tensor]] = {
    1: lambda places, size: places.clamp(0, size - 1),
    2: lambda places, size: _mirrored(places, size, twice=True),
    3: torch.remainder,
    4: lambda places, size: _mirrored(places, size, twice=False),
}


@computes("_cvcopyMakeBorder")
def copy_with_border(p: Any, x: Tensor) -> Tensor:
    """An image with a border around it."""
    if p.type == 0:
        values = list(p.values or ()) + [0.0] * x.shape[2] if p.values else [p.value] * x.shape[2]
        found = x.new_empty(x.shape[0] + p.top + p.bot, x.shape[1] + p.left + p.right, x.shape[2])
        found[:] = torch.tensor(values[: x.shape[2]], device=x.device).to(x.dtype)
        found[p.top : p.top + x.shape[0], p.left : p.left + x.shape[1]] = x
        return found
    if p.type not in BORDERS:
        raise MXNetError(f"Check failed: unknown type of border {p.type}")
    rows = BORDERS[p.type](torch.arange(-p.top, x.shape[0] + p.bot), x.shape[0])
    columns = BORDERS[p.type](torch.arange(-p.left, x.shape[1] + p.right), x.shape[1])
    return x[rows][:, columns]
