"""Change images whose channels lie last: turn, cut, resize as OpenCV does, brighten, normalize; compare boxes.

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


def _red_green_blue(hue: Tensor, light: Tensor, saturation: Tensor) -> Tensor:
    """Colours, whose hue is in sixths of the circle, as shares of red, green and blue."""
    most = torch.where(light <= 0.5, light * (1 + saturation), light + saturation - light * saturation)
    least = 2 * light - most
    sector = torch.floor(hue)
    rest = hue - sector
    levels = torch.stack([most, least, least + (most - least) * (1 - rest), least + (most - least) * rest], -1)
    # Of each sixth, which of these are red, green and blue.
    table = torch.tensor([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]], device=hue.device)
    return levels.gather(-1, table[torch.remainder(sector, 6).to(torch.int64)])


def _turned_hue(x: Tensor, turn: Tensor) -> Tensor:
    """The image with its hues moved by a share of the circle; what is grey stays."""
    if x.shape[-1] != 3:
        return x.clone()
    whole = x.to(torch.float32) / 255
    high, low = whole.amax(-1), whole.amin(-1)
    wide, light = high - low, (high + low) * 0.5
    coloured = wide > torch.finfo(torch.float32).eps
    saturation = torch.where(coloured, wide / torch.where(light < 0.5, high + low, 2 - high - low), 0.0)
    degrees = 60 / torch.where(coloured, wide, 1.0)
    red, green, blue = whole.unbind(-1)
    after_green = torch.where(high == green, (blue - red) * degrees + 120, (red - green) * degrees + 240)
    hue = torch.where(high == red, (green - blue) * degrees, after_green)
    hue = torch.where(hue < 0, hue + 360, hue) + turn * 360
    found = _red_green_blue(torch.remainder(hue * torch.tensor(1 / 60, device=x.device), 6), light, saturation)
    found = torch.where(coloured.unsqueeze(-1), found, light.unsqueeze(-1)) * 255
    # MXNet cuts what is no whole number.
    return found.to(x.dtype) if x.is_floating_point() else found.clamp(0, 255).to(x.dtype)


@computes("_image_random_hue", random=True)
def random_hue(p: Any, generator: Generator, x: Tensor) -> Tensor:
    """Move the hues by a random share of the circle."""
    return _turned_hue(x, _drawn(x, p.min_factor, p.max_factor, generator))


@computes("_image_random_color_jitter", random=True)
def random_color_jitter(p: Any, generator: Generator, x: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue by random factors, in a random order."""
    changes = [*[(name, getattr(p, name)) for name in BLENDS], ("hue", p.hue)]
    for place in torch.randperm(len(changes), generator=generator).tolist() if x.device.type != "meta" else range(4):
        name, reach = changes[place]
        if name == "hue" and reach > 0:
            x = _turned_hue(x, _drawn(x, -reach, reach, generator))
        elif reach > 0:
            x = _blended(name, x, _drawn(x, max(0.0, 1 - reach), 1 + reach, generator))
    return x.clone()


# How light of three principal colours changes red, green and blue.
LIGHT = torch.tensor([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
STRENGTH = torch.tensor([55.46, 4.794, 1.148])


def _lit(x: Tensor, alpha: Tensor) -> Tensor:
    light = ((LIGHT * STRENGTH).to(x.device) * alpha).sum(-1)
    # MXNet cuts what is no whole number.
    found = x.to(torch.float32) + light
    return found if x.is_floating_point() else found.clamp(0, 255).to(x.dtype)


@computes("_image_adjust_lighting")
def adjust_lighting(p: Any, x: Tensor) -> Tensor:
    """Add light of three principal colours."""
    return _lit(x, torch.tensor(p.alpha, device=x.device))


@computes("_image_random_lighting", random=True)
def random_lighting(p: Any, generator: Generator, x: Tensor) -> Tensor:
    """Add random light of three principal colours."""
    return _lit(x, torch.empty(3, device=x.device).normal_(0, p.alpha_std, generator=generator))


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
