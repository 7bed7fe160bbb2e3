"""Compute what detectors of objects need: regions of images, and boxes of which few are kept."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import computes


def _images_of(x: Tensor, rois: Tensor) -> Tensor:
    """The image of each region, by the first number of its row."""
    return x[rois[:, 0].to(torch.int64).clamp(0, x.shape[0] - 1)]


def _bins(start: Tensor, end: Tensor, count: int, size: int) -> Tensor:
    """Which of `size` places belong to which of `count` parts of each region: regions x parts x places."""
    length = (end - start + 1).clamp(min=1)
    parts = torch.arange(count, device=start.device)
    low = (torch.floor(parts * (length / count)[:, None]) + start[:, None]).clamp(0, size)
    high = (torch.ceil((parts + 1) * (length / count)[:, None]) + start[:, None]).clamp(0, size)
    places = torch.arange(size, device=start.device)
    return (places >= low[..., None]) & (places < high[..., None])


def _round(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.floor(torch.abs(x) + 0.5)


@computes("ROIPooling", hidden=1)
def roi_pooling(p: Any, x: Tensor, rois: Tensor) -> Tensor:
    """The largest of each part of each region, 0 where a part is empty."""
    corners = _round(rois.detach()[:, 1:] * p.spatial_scale)
    images, (_, _, height, width) = _images_of(x, rois), x.shape
    down = _bins(corners[:, 1], corners[:, 3], p.pooled_size[0], height)
    across = _bins(corners[:, 0], corners[:, 2], p.pooled_size[1], width)
    lines = [torch.where(down[:, part, None, :, None], images, -torch.inf).amax(2) for part in range(down.shape[1])]
    rows = torch.stack(lines, 2)
    found = [torch.where(across[:, part, None, None, :], rows, -torch.inf).amax(3) for part in range(across.shape[1])]
    largest = torch.stack(found, 3)
    return torch.where(torch.isinf(largest), 0.0, largest)


def _samples(start: Tensor, length: Tensor, p: Any, axis: int, size: int) -> tuple[Tensor, Tensor]:
    """Where each part of each region is sampled along an axis, and which of the samples count."""
    parts = p.pooled_size[axis]
    each = length / parts
    most = p.sample_ratio if p.sample_ratio > 0 else math.ceil(size / parts) + 1
    count = torch.full_like(each, most) if p.sample_ratio > 0 else torch.ceil(each).clamp(1, most)
    steps = torch.arange(most, device=start.device, dtype=start.dtype)
    inside = (steps + 0.5) * (each / count)[:, None, None]
    at = start[:, None, None] + torch.arange(parts, device=start.device)[:, None] * each[:, None, None] + inside
    return at, (steps < count[:, None]).to(start.dtype) / count[:, None]


def _weights(at: Tensor, counted: Tensor, size: int) -> Tensor:
    """How much of each place a part takes: regions x parts x places, bilinear between neighbours."""
    outside = (at < -1) | (at > size)
    at = at.clamp(0, size - 1)
    places = torch.arange(size, device=at.device, dtype=at.dtype)
    near = (1 - torch.abs(at[..., None] - places)).clamp(min=0)
    near = torch.where(outside[..., None], 0.0, near)
    return (near * counted[:, None, :, None]).sum(2)


@computes("_contrib_ROIAlign")
def roi_align(p: Any, x: Tensor, rois: Tensor) -> Tensor:
    """The mean of samples of each part of each region."""
    if p.position_sensitive:
        raise MXNetError("ROIAlign with position_sensitive is not in weft.mx")
    offset = 0.5 if p.aligned else 0.0
    corners = rois.detach()[:, 1:] * p.spatial_scale - offset
    sizes = corners[:, 2:] - corners[:, :2]
    sizes = sizes if p.aligned else sizes.clamp(min=1)
    down = _weights(*_samples(corners[:, 1], sizes[:, 1], p, 0, x.shape[2]), x.shape[2])
    across = _weights(*_samples(corners[:, 0], sizes[:, 0], p, 1, x.shape[3]), x.shape[3])
    found = torch.einsum("rchw,rph,rqw->rcpq", _images_of(x, rois), down, across)
    return torch.where((rois[:, 0] < 0)[:, None, None, None], 0.0, found)


def _overlaps(boxes: Tensor) -> Tensor:
    """How much of two boxes is common to both, for each pair of a batch; boxes are corners."""
    low = torch.maximum(boxes[..., :, None, :2], boxes[..., None, :, :2])
    high = torch.minimum(boxes[..., :, None, 2:], boxes[..., None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)
    union = area[..., :, None] + area[..., None, :] - common
    return torch.where(union <= 0, 0.0, common / torch.where(union <= 0, 1.0, union))


def _survivors(valid: Tensor, rivals: Tensor) -> Tensor:
    """Which boxes stay when each, the best first, drives out its rivals; `rivals` is batch x boxes x boxes."""
    kept = valid
    later = torch.ones_like(rivals[0]).triu(1)
    for place in range(valid.shape[1]):
        drives = kept[:, place, None] & rivals[:, place] & later[place]
        kept = kept & ~drives
    return kept


def _corners_of(boxes: Tensor, form: str) -> Tensor:
    if form == "corner":
        return boxes
    half = boxes[..., 2:] / 2
    return torch.cat([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def _centers_of(boxes: Tensor) -> Tensor:
    return torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)


@computes("_contrib_box_nms", hidden=1)
def box_nms(p: Any, x: Tensor) -> Tensor:
    """The boxes that none better overlaps too much, the best first; -1 in the place of the others."""
    rows = x.reshape(-1, *x.shape[-2:])
    score = rows[..., p.score_index].detach()
    ids = rows[..., p.id_index].detach() if p.id_index >= 0 else torch.zeros_like(score)
    valid = score > p.valid_thresh
    if p.id_index >= 0:
        valid = valid & (ids != p.background_id)
    order = torch.argsort(torch.where(valid, -score, torch.inf), dim=1, stable=True)
    valid = valid.gather(1, order)
    if p.topk > 0:
        valid = valid & (torch.arange(valid.shape[1], device=x.device) < p.topk)
    picked = rows.gather(1, order[..., None].expand_as(rows))
    places = slice(p.coord_start, p.coord_start + 4)
    rivals = _overlaps(_corners_of(picked[..., places].detach(), p.in_format)) > p.overlap_thresh
    if p.id_index >= 0 and not p.force_suppress:
        named = ids.gather(1, order)
        rivals = rivals & (named[:, :, None] == named[:, None, :])
    kept = _survivors(valid, rivals)
    if p.in_format != p.out_format:
        boxes = picked[..., places]
        boxes = _corners_of(boxes, "center") if p.in_format == "center" else _centers_of(boxes)
        changed = torch.cat([picked[..., : p.coord_start], boxes, picked[..., p.coord_start + 4 :]], -1)
        picked = picked + (changed - picked).detach()  # gradients go by the change, as in MXNet
    first = torch.argsort((~kept).to(torch.int32), dim=1, stable=True)
    found = torch.where(kept[..., None], picked, -1.0).gather(1, first[..., None].expand_as(rows))
    return found.reshape(x.shape)


def _decoded(p: Any, moves: Tensor, anchor: Tensor) -> Tensor:
    """The boxes that moves of anchors lead to, as corners."""
    at = _centers_of(anchor)
    scale = torch.tensor(p.variances, dtype=moves.dtype, device=moves.device)
    moved = moves * scale
    center = moved[..., :2] * at[..., 2:] + at[..., :2]
    half = torch.exp(moved[..., 2:]) * at[..., 2:] / 2
    found = torch.cat([center - half, center + half], -1)
    return found.clamp(0, 1) if p.clip else found


@computes("_contrib_MultiBoxDetection", hidden=1)
def multi_box_detection(p: Any, probabilities: Tensor, moves: Tensor, anchor: Tensor) -> Tensor:
    """Rows of class, score and box, the best first; those that a better one overlaps too much have class -1."""
    if p.background_id != 0:
        raise MXNetError("MultiBoxDetection with another background_id than 0 is not in weft.mx")
    score, kind = probabilities.detach()[:, 1:].max(1)
    valid = score >= p.threshold
    boxes = _decoded(p, moves.detach().reshape(moves.shape[0], -1, 4), anchor.detach())
    rows = torch.cat([kind.to(score.dtype)[..., None], score[..., None], boxes], -1)
    order = torch.argsort(torch.where(valid, -score, torch.inf), dim=1, stable=True)
    unsorted = torch.argsort((~valid).to(torch.int32), dim=1, stable=True)
    valid = valid.gather(1, order)
    counted = valid
    if p.nms_topk > 0:  # the others stay as they came, behind the best
        first = torch.arange(valid.shape[1], device=score.device) < p.nms_topk
        counted, order = counted & first, torch.where(first, order, unsorted)
    rows = rows.gather(1, order[..., None].expand_as(rows))
    rivals = _overlaps(rows[..., 2:]) > p.nms_threshold
    if not p.force_suppress:
        rivals = rivals & (rows[:, :, None, 0] == rows[:, None, :, 0])
    kept = _survivors(counted, rivals) if 0 < p.nms_threshold <= 1 else counted
    kinds = torch.where(kept, rows[..., 0], -1.0)
    found = torch.cat([kinds[..., None], rows[..., 1:]], -1)
    return torch.where(valid[..., None], found, -1.0)


@computes("_contrib_box_decode")
def box_decode(p: Any, moves: Tensor, anchors: Tensor) -> Tensor:
    """The boxes that moves of anchors lead to; as in MXNet, without a gradient."""
    moves, anchors = moves.detach(), anchors.detach()
    at = _centers_of(anchors) if p.format == "corner" else anchors
    center = moves[..., :2] * torch.tensor([p.std0, p.std1], device=moves.device) * at[..., 2:] + at[..., :2]
    growth = moves[..., 2:] * torch.tensor([p.std2, p.std3], device=moves.device)
    growth = growth.clamp(max=p.clip) if p.clip > 0 else growth
    half = torch.exp(growth) * at[..., 2:] / 2
    return torch.cat([center - half, center + half], -1)
