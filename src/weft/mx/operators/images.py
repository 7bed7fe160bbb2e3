"""Change images whose channels lie last: turn, cut, resize, brighten, normalize; compare boxes in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import computes

Generator = torch.Generator | None
GRAY = (0.299, 0.587, 0.114)


def _as_given(found: Tensor, x: Tensor) -> Tensor:
    """The element type that the image had; whole numbers are rounded and stay within their bounds."""
    return found if x.is_floating_point() else found.round().clamp(0, 255).to(x.dtype)


@computes("_image_to_tensor", mixed=True)
def to_tensor(_p: Any, x: Tensor) -> Tensor:
    """Channels first, elements between 0 and 1."""
    return x.movedim(-1, -3).to(torch.float32) / 255


def _per_channel(given: Any, count: int, x: Tensor) -> Tensor:
    numbers = [*given, *[given[0]] * count][:count] if len(given) == 1 else list(given)[:count]
    return torch.tensor(numbers, dtype=x.dtype, device=x.device).reshape(-1, 1, 1)


@computes("_image_normalize")
def normalize(p: Any, x: Tensor) -> Tensor:
    """Take means from channels, which lie first, and divide by deviations."""
    if x.dim() not in (3, 4) or x.shape[-3] not in (1, 3):
        raise MXNetError("Check failed: The first dimension of tensor input must be the channel dimension with 1 or 3")
    count = x.shape[-3]
    return (x - _per_channel(p.mean, count, x)) / _per_channel(p.std, count, x)


@computes("_image_flip_left_right")
def flip_left_right(_p: Any, x: Tensor) -> Tensor:
    """Turn left to right."""
    return x.flip(-2)


@computes("_image_flip_top_bottom")
def flip_top_bottom(_p: Any, x: Tensor) -> Tensor:
    """Turn top to bottom."""
    return x.flip(-3)


@computes("_image_crop")
def crop(p: Any, x: Tensor) -> Tensor:
    """Cut a box out."""
    height, width = x.shape[-3], x.shape[-2]
    if not (0 <= p.x <= p.x + p.width <= width and 0 <= p.y <= p.y + p.height <= height):
        raise MXNetError(f"Check failed: a crop of {p.width} x {p.height} at ({p.x}, {p.y}) of {width} x {height}")
    return x[..., p.y : p.y + p.height, p.x : p.x + p.width, :].clone()


@computes("_image_resize")
def resize(p: Any, x: Tensor) -> Tensor:
    """Give images other sizes: the nearest pixel, or a mean of neighbours."""
    if p.interp not in (0, 1, 2):
        raise MXNetError(f"_image_resize with interp={p.interp} is not in weft.mx: 0, 1 or 2")
    width, height = (p.size[0], p.size[0]) if len(p.size) == 1 else p.size
    if p.keep_ratio and len(p.size) == 1:
        old_height, old_width = x.shape[-3], x.shape[-2]
        short = min(old_height, old_width)
        width, height = old_width * p.size[0] // short, old_height * p.size[0] // short
    mode = {0: "nearest", 1: "bilinear", 2: "bicubic"}[p.interp]
    planes = x.movedim(-1, -3)
    lined = planes.reshape(-1, 1, *planes.shape[-2:]).to(torch.float32)
    options = {} if mode == "nearest" else {"align_corners": False}
    found = functional.interpolate(lined, size=(height, width), mode=mode, **options)
    return _as_given(found.reshape(*planes.shape[:-2], height, width).movedim(-3, -1), x)


def _gray(x: Tensor) -> Tensor:
    """The brightness of each pixel."""
    return (x * torch.tensor(GRAY, device=x.device)).sum(-1, keepdim=True) if x.shape[-1] == 3 else x


# Of each change by a random factor: what a factor of 0 leaves of the image.
BLENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "brightness": torch.zeros_like,
    "contrast": lambda x: _gray(x).mean().expand_as(x),
    "saturation": lambda x: _gray(x).expand_as(x),
}


def _blended(name: str, x: Tensor, factor: Any) -> Tensor:
    whole = x.to(torch.float32)
    return _as_given(whole * factor + BLENDS[name](whole) * (1 - factor), x)


def _drawn(x: Tensor, low: float, high: float, generator: Generator) -> Tensor:
    return torch.empty(1, device=x.device).uniform_(low, max(low, high), generator=generator)


def _random_blend(name: str) -> None:
    @computes(f"_image_random_{name}", random=True)
    def random_blend(p: Any, generator: Generator, x: Tensor) -> Tensor:
        return _blended(name, x, _drawn(x, p.min_factor, p.max_factor, generator))


for _name in BLENDS:
    _random_blend(_name)


def _random_flip(name: str, axis: int) -> None:
    @computes(f"_image_random_flip_{name}", random=True)
    def random_flip(_p: Any, generator: Generator, x: Tensor) -> Tensor:
        return torch.where(_drawn(x, 0, 1, generator) < 0.5, x.flip(axis), x)


_random_flip("left_right", -2)
_random_flip("top_bottom", -3)


@computes("_contrib_box_iou")
def box_iou(p: Any, x: Tensor, y: Tensor) -> Tensor:
    """How much of two boxes is common to both, for each pair."""
    x, y = x.detach(), y.detach()
    rows = x.reshape(*x.shape[:-1], *[1] * (y.dim() - 1), 4)
    one, other = (_corners(boxes, p.format) for boxes in (rows, y))
    inside = (torch.minimum(one[1], other[1]) - torch.maximum(one[0], other[0])).clamp(min=0).prod(-1)
    whole = sum((high - low).clamp(min=0).prod(-1) for low, high in (one, other)) - inside
    return torch.where(whole > 0, inside / whole, 0.0)


def _corners(boxes: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """The least and the largest places of boxes, which are given by these, or by centres and sizes."""
    first, second = boxes[..., :2], boxes[..., 2:]
    return (first, second) if form == "corner" else (first - second / 2, first + second / 2)


@computes("_contrib_MultiBoxPrior")
def multi_box_prior(p: Any, x: Tensor) -> Tensor:
    """Boxes of several sizes and shapes around each pixel, in shares of the image."""
    height, width = x.shape[-2:]
    steps = [given if given > 0 else 1 / count for given, count in zip(p.steps, (height, width), strict=True)]
    down, across = (
        (torch.arange(count, device=x.device) + offset) * step
        for count, offset, step in zip((height, width), p.offsets, steps, strict=True)
    )
    kinds = [(size, p.ratios[0]) for size in p.sizes] + [(p.sizes[0], ratio) for ratio in p.ratios[1:]]
    halves = [(size * height / width * ratio**0.5 / 2, size / ratio**0.5 / 2) for size, ratio in kinds]
    half = torch.tensor(halves, device=x.device)
    centres = torch.stack([across.expand(height, width), down.reshape(-1, 1).expand(height, width)], -1).unsqueeze(2)
    found = torch.cat([centres - half, centres + half], -1).reshape(1, -1, 4).to(x.dtype)
    return found.clamp(0, 1) if p.clip else found
