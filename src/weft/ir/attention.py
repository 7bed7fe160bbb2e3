"""Say what attention and its gradient are: the types they take and give, and the plain PyTorch code that they mean.

The score of a query and a key is their product times `scale`; then each mask is met in order: a mask of numbers is
added, one of truth values leaves the scores where it is true and puts `hidden` elsewhere; with `causal`, scores of keys
behind their query are -inf in the end. A row of scores that are all -inf gives zeros with `zeros`, else NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.errors import UsageError
from weft.ir.graph import Value
from weft.ir.op_types import FLOATING, Attributes, check_dtype, listed, tensor_types
from weft.ir.types import TensorType, TupleType, Type, contiguous


def attention_type(operands: Sequence[Type], given: Attributes) -> Type:
    """Give the rows of values, and the logarithm of what each row of softmax is divided by."""
    del given
    query, key, value, *masks = _at_least(3, operands)
    _check_attended(query, key, value)
    scores = (*query.shape[:-1], key.shape[-2])
    if any(mask.shape != scores or mask.dtype not in (torch.bool, query.dtype) for mask in masks):
        raise UsageError(f"masks {listed(masks)} for scores of the shape {list(scores)}")
    return TupleType(
        (
            contiguous(query.dtype, (*query.shape[:-1], value.shape[-1]), query.device),
            contiguous(query.dtype, query.shape[:-1], query.device),
        )
    )


def attention_gradient_type(operands: Sequence[Type], given: Attributes) -> Type:
    """Give the gradients for query, key and value."""
    del given
    gradient, query, key, value, logarithm, weight, *masks = _at_least(6, operands)
    _check_attended(query, key, value)
    rows = (*query.shape[:-1], value.shape[-1]), query.shape[:-1], query.shape[:-1]
    scores = [(*query.shape[:-1], key.shape[-2])] * len(masks)
    others = (gradient, logarithm, weight, *masks)
    shapes = tuple(other.shape for other in others)
    if shapes != (*rows, *scores) or any(other.dtype != query.dtype for other in others):
        raise UsageError(f"{listed(list(others))} do not fit the attention of {listed([query, key, value])}")
    return TupleType(tuple(contiguous(kind.dtype, kind.shape, kind.device) for kind in (query, key, value)))


def _at_least(count: int, operands: Sequence[Type]) -> list[TensorType]:
    found = list(tensor_types(operands))
    if len(found) < count:
        raise UsageError(f"{len(found)} operands, not at least {count}")
    return found


def _check_attended(query: TensorType, key: TensorType, value: TensorType) -> None:
    check_dtype(query, FLOATING)
    same = query.dtype == key.dtype == value.dtype and query.rank == key.rank == value.rank >= 2
    batches = {kind.shape[:-2] for kind in (query, key, value)}
    if not same or len(batches) > 1 or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise UsageError(f"attention of {listed([query, key, value])}")
    if not key.shape[-2] or not key.shape[-1]:
        raise UsageError(f"attention to no keys, or to keys of no numbers: {key}")


def attention(value: Value, *operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as the row says."""
    query, key, values, *masks = operands
    scores = _scores(value.attributes, query, key, masks)
    highest = scores.amax(-1, keepdim=True)
    powers = (scores - highest).exp()
    total = powers.sum(-1, keepdim=True)
    shares = powers / total
    if value.attributes["zeros"]:
        shares = shares.masked_fill(highest == -math.inf, 0.0)
    return shares @ values, (total.log() + highest).squeeze(-1)


def attention_gradient(value: Value, *operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the shares again from the logarithms of their sums, and from them all three gradients."""
    gradient, query, key, values, logarithm, weight, *masks = operands
    scores = _scores(value.attributes, query, key, masks)
    shares = (scores - logarithm.unsqueeze(-1)).exp()
    if value.attributes["zeros"]:
        shares = shares.masked_fill(scores == -math.inf, 0.0)
    slopes = shares * (gradient @ values.mT - weight.unsqueeze(-1)) * value.attributes["scale"]
    return slopes @ key, slopes.mT @ query, shares.mT @ gradient


def _scores(
    given: Mapping[str, Any], query: torch.Tensor, key: torch.Tensor, masks: Sequence[torch.Tensor]
) -> torch.Tensor:
    scores: torch.Tensor = query @ key.mT * given["scale"]
    for mask in masks:
        scores = scores.masked_fill(~mask, given["hidden"]) if mask.dtype is torch.bool else scores + mask
    if given["causal"]:
        behind = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(behind, -math.inf)
    return scores


ATTENTION_RULES: Mapping[str, Callable[..., Any]] = {
    "attention": attention,
    "attention_gradient": attention_gradient,
}
