"""Match boxes of a detector with those of labels: which belong together, and what a network is to learn of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.mx.operators.table import computes

LEAST_OVERLAP = 1e-6  # of a box and a label that belong together because nothing else does


def _pairs_by_score(scores: Tensor, threshold: float, most: int, *, ascending: bool) -> list[tuple[int, int]]:
    """The best pair of a row and a column, then the best of those that are left, and so on: at most so many, or all."""
    columns = scores.shape[1]
    most = most or min(scores.shape)
    pairs: list[tuple[int, int]] = []
    taken_rows: set[int] = set()
    taken_columns: set[int] = set()
    values = scores.reshape(-1).tolist()
    order = torch.argsort(scores.reshape(-1), descending=not ascending, stable=True).tolist()
    for place in order:
        row, column = divmod(place, columns)
        beyond = values[place] > threshold if ascending else values[place] < threshold
        if beyond or len(pairs) == most:
            break
        if row not in taken_rows and column not in taken_columns:
            pairs.append((row, column))
            taken_rows.add(row)
            taken_columns.add(column)
    return pairs


@computes("_contrib_bipartite_matching", outputs=2)
def bipartite_matching(p: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """For each row its column, and for each column its row; -1 for none."""
    rows, columns = (torch.full(sizes, -1.0, device=x.device) for sizes in (x.shape[:-1], (*x.shape[:-2], x.shape[-1])))
    if x.device.type == "meta":
        return rows.to(x.dtype), columns.to(x.dtype)
    flat = x.detach().reshape(-1, *x.shape[-2:])
    for batch, scores in enumerate(flat):
        most = p.topk + 1 if p.topk > 0 else 0  # MXNet takes one more
        for row, column in _pairs_by_score(scores, p.threshold, most, ascending=p.is_ascend):
            rows.view(flat.shape[0], -1)[batch, row] = column
            columns.view(flat.shape[0], -1)[batch, column] = row
    return rows.to(x.dtype), columns.to(x.dtype)


def _centred(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and sizes of boxes that are given by corners."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low


@computes("_contrib_box_encode", outputs=2)
def box_encode(_p: Any, *arrays: Tensor) -> tuple[Tensor, Tensor]:
    """How far each anchor is from the box that it is matched with, and a mask of those that are matched."""
    samples, matches, anchors, labels, means, stds = (array.detach() for array in arrays)
    places = matches.to(torch.int64).unsqueeze(-1).expand(*matches.shape, 4)
    (centre, size), (wanted, wanted_size) = _centred(anchors), _centred(labels.gather(1, places))
    found = (torch.cat([(wanted - centre) / size, torch.log(wanted_size / size)], -1) - means) / stds
    mask = (samples > 0.5).unsqueeze(-1).expand_as(found)
    return torch.where(mask, found, 0.0), mask.to(found.dtype)


def _overlaps(anchors: Tensor, boxes: Tensor) -> Tensor:
    one, other = anchors[:, None], boxes[None]
    inside = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0)
    common = inside.prod(-1)
    whole = sum((each[..., 2:] - each[..., :2]).prod(-1) for each in (one, other)) - common
    return torch.where(whole > 0, common / whole, 0.0)


def _matched(overlaps: Tensor, threshold: float) -> dict[int, int]:
    """For each anchor that belongs to a label, which: each label's best one, and those that overlap enough."""
    found = dict(_pairs_by_score(overlaps, LEAST_OVERLAP, 0, ascending=False))
    if threshold > 0:
        best, places = overlaps.max(1)
        for anchor in range(overlaps.shape[0]):
            if anchor not in found and float(best[anchor]) > threshold:
                found[anchor] = int(places[anchor])
    return found


def _negatives(p: Any, predictions: Tensor, overlaps: Tensor, matched: dict[int, int]) -> set[int]:
    """The anchors that are to learn that there is nothing: all others, or those that look most like something."""
    others = [anchor for anchor in range(overlaps.shape[0]) if anchor not in matched]
    if p.negative_mining_ratio <= 0:
        return set(others)
    best = overlaps.max(1)[0]
    background = torch.softmax(predictions, 0)[0]
    far = [anchor for anchor in others if float(best[anchor]) < p.negative_mining_thresh]
    far.sort(key=lambda anchor: float(background[anchor]))
    # MXNet reads `minimum_negative_samples`, and does nothing with it.
    return set(far[: min(int(len(matched) * p.negative_mining_ratio), len(others))])


def _offsets(anchor: Tensor, box: Tensor, variances: Sequence[float]) -> Tensor:
    (centre, size), (wanted, wanted_size) = _centred(anchor), _centred(box)
    return torch.cat([(wanted - centre) / size, torch.log(wanted_size / size)], -1) / torch.tensor(variances)


@computes("_contrib_MultiBoxTarget", outputs=3)
def multi_box_target(p: Any, anchors: Tensor, labels: Tensor, predictions: Tensor) -> tuple[Tensor, ...]:
    """What each anchor is to learn: offsets to its label, a mask of those that have one, and its class."""
    anchors = anchors.detach().reshape(-1, 4)
    batch, count = labels.shape[0], anchors.shape[0]
    offsets, mask = (torch.zeros(batch, count, 4, device=labels.device) for _ in range(2))
    classes = torch.full((batch, count), float(p.ignore_label), device=labels.device)
    for image in range(0 if labels.device.type == "meta" else batch):
        rows = labels[image].detach()
        ends = (rows[:, 0] == -1).nonzero()
        rows = rows[: int(ends[0])] if len(ends) else rows
        if not len(rows):
            classes[image] = 0
            continue
        overlaps = _overlaps(anchors, rows[:, 1:5])
        matched = _matched(overlaps, p.overlap_threshold)
        for anchor in _negatives(p, predictions[image].detach(), overlaps, matched):
            classes[image, anchor] = 0
        for anchor, row in matched.items():
            classes[image, anchor] = rows[row, 0] + 1
            mask[image, anchor] = 1
            offsets[image, anchor] = _offsets(anchors[anchor], rows[row, 1:5], p.variances)
    return (
        offsets.reshape(batch, -1).to(labels.dtype),
        mask.reshape(batch, -1).to(labels.dtype),
        classes.to(labels.dtype),
    )
