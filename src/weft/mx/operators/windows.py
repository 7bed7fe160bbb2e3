"""Read images at places that other arrays name: deformable convolutions, pools of regions and displacements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.mx.operators.layers import unless_no_bias
from weft.mx.operators.table import Shape, Sizes, computes


def _pair(given: Sequence[int], otherwise: int) -> tuple[int, int]:
    return (int(given[0]), int(given[1])) if given else (otherwise, otherwise)


def _bilinear(x: Tensor, down: Tensor, across: Tensor, *, fades: bool) -> Tensor:
    """Planes (n, c, h, w) at places (n, ...), between pixels; gives (n, c, ...).

    What is outside is 0. `fades`: so are pixels there, else an edge ends at once below 0, and lasts for a pixel above.
    """
    count, channels, height, width = x.shape
    inner = (down >= 0) & (down < height) & (across >= 0) & (across < width) | fades
    if not fades:
        down, across = down.clamp(max=height - 1), across.clamp(max=width - 1)
    flat = x.reshape(count, channels, height * width)
    found = x.new_zeros(())
    for y, x_place, share in _corners(down, across):
        inside = (y >= 0) & (y < height) & (x_place >= 0) & (x_place < width)
        place = (y.clamp(0, height - 1) * width + x_place.clamp(0, width - 1)).to(torch.int64)
        picked = flat.gather(2, place.reshape(count, 1, -1).expand(-1, channels, -1))
        found = found + (picked.reshape(count, channels, *down.shape[1:])) * (share * (inside & inner)).unsqueeze(1)
    return found


def _corners(down: Tensor, across: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The four pixels around places, and their shares."""
    top, left = torch.floor(down).detach(), torch.floor(across).detach()
    y, x = down - top, across - left
    return [
        (top, left, (1 - y) * (1 - x)),
        (top, left + 1, (1 - y) * x),
        (top + 1, left, y * (1 - x)),
        (top + 1, left + 1, y * x),
    ]


def _deformed(p: Any, x: Tensor, offset: Tensor, mask: Tensor | None) -> Tensor:
    """The pixels of each window where the offsets move them: (n, c, kernel, rows, columns)."""
    (high, wide), stride, dilate, pad = p.kernel, _pair(p.stride, 1), _pair(p.dilate, 1), _pair(p.pad, 0)
    count, channels = x.shape[:2]
    groups, (rows, columns) = p.num_deformable_group, offset.shape[2:]
    moved = offset.reshape(count, groups, high * wide, 2, rows, columns)
    begin = [
        torch.arange(size, device=x.device) * step - gap
        for size, step, gap in zip((rows, columns), stride, pad, strict=True)
    ]
    inner = [torch.arange(size, device=x.device) * step for size, step in zip((high, wide), dilate, strict=True)]
    down = (inner[0].repeat_interleave(wide).reshape(-1, 1, 1) + begin[0].reshape(1, -1, 1)).to(x.dtype)
    across = (inner[1].repeat(high).reshape(-1, 1, 1) + begin[1].reshape(1, 1, -1)).to(x.dtype)
    parts = []
    for group, part in enumerate(x.chunk(groups, 1)):
        read = _bilinear(part, down + moved[:, group, :, 0], across + moved[:, group, :, 1], fades=mask is not None)
        parts.append(
            read if mask is None else read * mask.reshape(count, groups, 1, high * wide, rows, columns)[:, group]
        )
    return torch.cat(parts, 1).reshape(count, channels, high * wide, rows, columns)


def _convolved(p: Any, windows: Tensor, weight: Tensor, bias: Sequence[Tensor]) -> Tensor:
    count, channels, places, rows, columns = windows.shape
    grouped = windows.reshape(count, p.num_group, channels // p.num_group * places, rows * columns)
    kernels = weight.reshape(p.num_group, p.num_filter // p.num_group, -1)
    found = torch.einsum("gok,ngkp->ngop", kernels, grouped).reshape(count, p.num_filter, rows, columns)
    return found + bias[0].reshape(1, -1, 1, 1) if bias else found


def _sizes(first: int, p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    """The weights, and the bias, of a convolution whose image has known channels."""
    x = sizes[0]
    if x is None or not x[1]:
        return sizes
    own = [(p.num_filter, x[1] // p.num_group, *p.kernel), (p.num_filter,)]
    return [*sizes[:first], *own[: len(sizes) - first]]


@computes(
    "_contrib_DeformableConvolution",
    inputs=lambda p: unless_no_bias(p) + 1,
    complete=lambda p, sizes: _sizes(2, p, sizes),
)
def deformable_convolution(p: Any, x: Tensor, offset: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    """A convolution whose windows read where offsets say."""
    return _convolved(p, _deformed(p, x, offset, None), weight, bias)


@computes(
    "_contrib_ModulatedDeformableConvolution",
    inputs=lambda p: unless_no_bias(p) + 2,
    complete=lambda p, sizes: _sizes(3, p, sizes),
)
def modulated_convolution(p: Any, *arrays: Tensor) -> Tensor:
    """The same, with a weight for each place that is read."""
    x, offset, mask, weight = arrays[:4]
    return _convolved(p, _deformed(p, x, offset, mask), weight, arrays[4:])


@computes("_contrib_PSROIPooling", mixed=False)
def psroi_pooling(p: Any, x: Tensor, rois: Tensor) -> Tensor:
    """Means of the parts of regions, each part from channels of its own."""
    size, groups = p.pooled_size, p.group_size or p.pooled_size
    height, width = x.shape[2:]
    found = x.new_zeros(rois.shape[0], p.output_dim, size, size)
    if x.device.type == "meta":
        return found
    rows = []
    for roi in rois.detach().tolist():
        left, top = (_away(each) * p.spatial_scale for each in roi[1:3])
        right, bottom = ((_away(each) + 1) * p.spatial_scale for each in roi[3:5])
        bins = [max(right - left, 0.1) / size, max(bottom - top, 0.1) / size]
        image = x[int(roi[0])].reshape(p.output_dim, groups, groups, height, width)
        parts = []
        for i in range(size):
            for j in range(size):
                y = _bounds(top, bins[1], i, height)
                z = _bounds(left, bins[0], j, width)
                part = image[:, i * groups // size, j * groups // size, slice(*y), slice(*z)]
                parts.append(part.mean((1, 2)) if part.numel() else x.new_zeros(p.output_dim))
        rows.append(torch.stack(parts, 1).reshape(p.output_dim, size, size))
    return torch.stack(rows) if rows else found


def _away(number: float) -> float:
    """Rounded; halves away from 0."""
    return math.copysign(math.floor(abs(number) + 0.5), number)


def _bounds(begin: float, step: float, place: int, size: int) -> tuple[int, int]:
    first, last = math.floor(begin + place * step), math.ceil(begin + (place + 1) * step)
    return min(max(first, 0), size), min(max(last, 0), size)


@computes("Correlation", hidden=2)
def correlation(p: Any, x: Tensor, y: Tensor) -> Tensor:
    """How alike two images are where one is displaced: a channel for each displacement."""
    pad, kernel, most = p.pad_size, p.kernel_size, p.max_displacement
    x, y = (functional.pad(each, (pad, pad, pad, pad)) for each in (x, y))
    border = most + kernel // 2
    rows, columns = (math.ceil((size - 2 * border) / p.stride1) for size in x.shape[2:])
    reach = most // p.stride2
    planes = []
    for down in range(-reach, reach + 1):
        for across in range(-reach, reach + 1):
            there = _at(y, border + down * p.stride2, border + across * p.stride2, (rows, columns), p)
            here = _at(x, border, border, (rows, columns), p)
            planes.append((here * there if p.is_multiply else (here - there).abs()).sum((1, 4, 5)))
    found: Tensor = torch.stack(planes, 1) / (kernel * kernel * x.shape[1])
    return found


def _at(x: Tensor, down: int, across: int, counts: tuple[int, int], p: Any) -> Tensor:
    """The windows around places that begin there: (n, c, rows, columns, kernel, kernel)."""
    windows = x.unfold(2, p.kernel_size, 1).unfold(3, p.kernel_size, 1)
    down, across = down - p.kernel_size // 2, across - p.kernel_size // 2
    rows = torch.arange(counts[0], device=x.device) * p.stride1 + down
    columns = torch.arange(counts[1], device=x.device) * p.stride1 + across
    return windows[:, :, rows][:, :, :, columns]
