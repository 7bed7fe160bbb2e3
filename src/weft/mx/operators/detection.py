"""Compute what detectors of objects need: regions of images that are proposed, pooled, and kept where boxes overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import computes


def _anchors(p: Any, device: torch.device) -> Tensor:
    """The boxes around one pixel, by shape and size, as corners."""
    middle, area = (p.feature_stride - 1) / 2, float(p.feature_stride**2)
    found = []
    for ratio in p.ratios:
        width = math.floor(math.sqrt(math.floor(area / ratio)) + 0.5)
        height = math.floor(width * ratio + 0.5)
        for scale in p.scales:
            across, down = (width * scale - 1) / 2, (height * scale - 1) / 2
            found.append((middle - across, middle - down, middle + across, middle + down))
    return torch.tensor(found, dtype=torch.float32, device=device)


def _moved(p: Any, boxes: Tensor, moves: Tensor) -> Tensor:
    """Boxes by moves of their corners, or of centres and the logarithms of sizes."""
    if p.iou_loss:
        return boxes + moves
    sizes = boxes[..., 2:] - boxes[..., :2] + 1
    centres = boxes[..., :2] + (sizes - 1) / 2 + moves[..., :2] * sizes
    half = (torch.exp(moves[..., 2:]) * sizes - 1) / 2
    return torch.cat([centres - half, centres + half], -1)


def _kept(boxes: Tensor, threshold: float, most: int) -> list[int]:
    """The places of boxes that no better one, which comes before them, overlaps too much."""
    area = (boxes[:, 2:] - boxes[:, :2] + 1).prod(-1)
    alive = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    kept: list[int] = []
    for place in range(len(boxes)):
        if len(kept) == most:
            break
        if not alive[place]:
            continue
        kept.append(place)
        low = torch.maximum(boxes[place, :2], boxes[:, :2])
        common = (torch.minimum(boxes[place, 2:], boxes[:, 2:]) - low + 1).clamp(min=0).prod(-1)
        alive &= common / (area[place] + area - common) <= threshold
    return kept


def _proposed(p: Any, scores: Tensor, moves: Tensor, about: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The regions of one image, the best first, and their scores; the best ones again if there are too few."""
    count, rows, columns = scores.shape
    image_height, image_width, scale = about[:3]
    device = scores.device
    steps = [torch.arange(size, device=device, dtype=torch.float32) * p.feature_stride for size in (rows, columns)]
    down, across = (each.reshape(-1) for each in torch.meshgrid(*steps, indexing="ij"))
    shifts = torch.stack([across, down, across, down], -1).unsqueeze(1)
    boxes = (_anchors(p, device) + shifts).reshape(-1, 4)
    by_pixel = moves.reshape(count, 4, rows, columns).permute(2, 3, 0, 1).reshape(-1, 4)
    most = torch.tensor([image_width, image_height, image_width, image_height], device=device) - 1
    found = torch.minimum(_moved(p, boxes, by_pixel).clamp(min=0), most)
    score = scores.permute(1, 2, 0)
    inside = torch.ones(rows, columns, dtype=torch.bool, device=device)
    inside[int(image_height / p.feature_stride) :] = False
    inside[:, int(image_width / p.feature_stride) :] = False
    score = torch.where(inside.unsqueeze(-1), score, -1.0).reshape(-1)
    least = p.rpn_min_size * scale
    sizes = found[:, 2:] - found[:, :2] + 1
    small = (sizes < least).any(-1)
    wider = torch.tensor([-1.0, -1, 1, 1], device=device) * (least / 2)
    found = torch.where(small.unsqueeze(-1), found + wider, found)
    score = torch.where(small, -1.0, score)
    first = p.rpn_pre_nms_top_n if p.rpn_pre_nms_top_n > 0 else len(score)
    order = torch.argsort(score, descending=True, stable=True)[:first]
    found, score = found[order], score[order]
    wanted = min(p.rpn_post_nms_top_n if p.rpn_post_nms_top_n > 0 else len(order), len(order))
    kept = _kept(found, p.threshold, wanted)
    places = [kept[place % len(kept)] for place in range(p.rpn_post_nms_top_n)]
    return found[places], score[places]


@computes(
    "_contrib_Proposal",
    "_contrib_MultiProposal",
    outputs=lambda p: 2 if p.output_score else 1,
    hidden=lambda p: 0 if p.output_score else 1,
)
def propose(p: Any, probabilities: Tensor, moves: Tensor, about: Tensor) -> Any:
    """Rows of an image's number and a region in it, and the regions' scores."""
    probabilities, moves, about = probabilities.detach(), moves.detach(), about.detach()
    images, count = probabilities.shape[0], p.rpn_post_nms_top_n
    regions = probabilities.new_zeros(images * count, 5)
    scores = probabilities.new_zeros(images * count, 1)
    for image in range(0 if probabilities.device.type == "meta" else images):
        objects = probabilities[image, probabilities.shape[1] // 2 :]
        boxes, score = _proposed(p, objects, moves[image], about[image].tolist())
        rows = slice(image * count, (image + 1) * count)
        regions[rows, 0], regions[rows, 1:], scores[rows, 0] = image, boxes, score
    return (regions, scores) if p.output_score else regions


def _between(image: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Planes (c, h, w) at places (...), between pixels: those at an edge last for a pixel, what is beyond is 0."""
    height, width = image.shape[1:]
    inside = (down >= -1) & (down <= height) & (across >= -1) & (across <= width)
    down, across = down.clamp(0, height - 1), across.clamp(0, width - 1)
    top, left = torch.floor(down), torch.floor(across)
    y, x = down - top, across - left
    found = image.new_zeros(())
    for row, column, share in (
        (top, left, (1 - y) * (1 - x)),
        (top, left + 1, (1 - y) * x),
        (top + 1, left, y * (1 - x)),
        (top + 1, left + 1, y * x),
    ):
        places = row.clamp(max=height - 1).to(torch.int64), column.clamp(max=width - 1).to(torch.int64)
        found = found + image[:, places[0], places[1]] * (share * inside)
    return found


@computes("_contrib_RROIAlign")
def rotated_roi_align(p: Any, x: Tensor, rois: Tensor) -> Tensor:
    """Means of samples of the parts of regions, which are given by centre, sizes and an angle; has no gradient."""
    x = x.detach()
    rows, columns = p.pooled_size
    if x.device.type == "meta":
        return x.new_empty(rois.shape[0], x.shape[1], rows, columns)
    pooled = []
    for roi in rois.detach().tolist():
        middle_x, middle_y, width, height = (each * p.spatial_scale for each in roi[1:5])
        width, height, angle = max(width, 1.0), max(height, 1.0), roi[5] * math.pi / 180
        counts = [
            p.sampling_ratio if p.sampling_ratio > 0 else math.ceil(size / parts)
            for size, parts in ((height, rows), (width, columns))
        ]
        down, across = (
            (torch.arange(parts * count, device=x.device) + 0.5) * (size / parts / count) - size / 2
            for size, parts, count in ((height, rows, counts[0]), (width, columns, counts[1]))
        )
        at_x = across * math.cos(angle) + down.unsqueeze(1) * math.sin(angle) + middle_x
        at_y = down.unsqueeze(1) * math.cos(angle) - across * math.sin(angle) + middle_y
        samples = _between(x[int(roi[0])], at_y, at_x)
        pooled.append(samples.reshape(-1, rows, counts[0], columns, counts[1]).mean((2, 4)))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], rows, columns)


def _deformed_roi(p: Any, image: Tensor, roi: Sequence[float], moves: Tensor | None) -> Tensor:
    """The parts of one region, each moved, and each from channels of its own: (channels, rows, columns)."""
    height, width = image.shape[1:]
    size, samples, groups = p.pooled_size, p.sample_per_part, p.group_size
    left, top = (math.floor(each + 0.5) * p.spatial_scale - 0.5 for each in roi[1:3])
    right, bottom = ((math.floor(each + 0.5) + 1) * p.spatial_scale - 0.5 for each in roi[3:5])
    wide, high = max(right - left, 0.1), max(bottom - top, 0.1)
    parts = torch.arange(size, device=image.device)
    inner = torch.arange(samples, device=image.device)
    channels = torch.arange(p.output_dim, device=image.device).reshape(-1, 1, 1)
    shift_x = shift_y = image.new_zeros(1, 1, 1)
    if moves is not None:
        kinds = channels * (moves.shape[0] // 2) // p.output_dim
        of_part = parts * (p.part_size or size) // size
        shift_x, shift_y = (
            moves[kinds * 2 + axis, of_part.reshape(-1, 1), of_part.reshape(1, -1)] * p.trans_std for axis in (0, 1)
        )
    steps = parts[:, None] + inner / samples
    down = (top + steps * (high / size)).reshape(1, size, 1, samples, 1) + (shift_y * high)[..., None, None]
    across = (left + steps * (wide / size)).reshape(1, 1, size, 1, samples) + (shift_x * wide)[..., None, None]
    of_group = (parts * groups // size).clamp(max=groups - 1)
    source = (channels * groups + of_group.reshape(-1, 1)) * groups + of_group.reshape(1, -1)
    inside = (down >= -0.5) & (down <= height - 0.5) & (across >= -0.5) & (across <= width - 0.5)
    down, across = down.clamp(0, height - 1), across.clamp(0, width - 1)
    low, near = torch.floor(down).detach(), torch.floor(across).detach()
    y, z = down - low, across - near
    total = image.new_zeros(())
    for row, column, share in (
        (low, near, (1 - y) * (1 - z)),
        (low, torch.ceil(across).detach(), (1 - y) * z),
        (torch.ceil(down).detach(), near, y * (1 - z)),
        (torch.ceil(down).detach(), torch.ceil(across).detach(), y * z),
    ):
        place = source[..., None, None], row.to(torch.int64), column.to(torch.int64)
        total = total + image[place] * (share * inside)
    counted = inside.expand(total.shape).sum((3, 4))
    return torch.where(counted > 0, total.sum((3, 4)) / counted.clamp(min=1), 0.0)


@computes("_contrib_DeformablePSROIPooling", inputs=lambda p: 2 if p.no_trans else 3, hidden=1)
def deformable_psroi_pooling(p: Any, x: Tensor, rois: Tensor, *moves: Tensor) -> Tensor:
    """Means of samples of the parts of regions, which other arrays move."""
    if x.device.type == "meta":
        return x.new_empty(rois.shape[0], p.output_dim, p.pooled_size, p.pooled_size)
    pooled = [
        _deformed_roi(p, x[int(roi[0])], roi, moves[0][place] if moves else None)
        for place, roi in enumerate(rois.detach().tolist())
    ]
    return torch.stack(pooled) if pooled else x.new_zeros(0, p.output_dim, p.pooled_size, p.pooled_size)


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
