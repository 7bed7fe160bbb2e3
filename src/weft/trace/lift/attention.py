"""Lift PyTorch's fused attention and its gradient to the ops of these names."""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.trace.lift.arguments import Arguments, Results, Rules
from weft.trace.lift.expression import Expression, several


def options(arguments: Arguments, query: Expression, masks: list[Expression]) -> dict[str, Any]:
    """What both ops say besides their operands; with a mask, a row without any key gives zeros, as PyTorch's does."""
    arguments.require(arguments.literal("dropout_p") == 0, "with dropout")
    given = arguments.literal("scale")
    scale = 1.0 / math.sqrt(query.shape[-1]) if given is None else float(given)
    return {"scale": scale, "causal": bool(arguments.literal("is_causal")), "zeros": bool(masks)}


def masks_of(arguments: Arguments, query: Expression, key: Expression) -> list[Expression]:
    """What is added to scores: PyTorch makes -inf of what a mask hides, and of a score of infinity NaN with it."""
    arguments.require(query.shape[-1] > 0 and key.shape[-2] > 0, "of nothing")
    mask = arguments.maybe("attn_mask")
    if mask is None:
        return []
    if mask.dtype is torch.bool:
        mask = mask.choose(mask.cast(query.dtype).like(0.0), mask.cast(query.dtype).like(-math.inf))
    return [mask.wide().cast(query.dtype).expand((*query.shape[:-1], key.shape[-2]))]


def repeated(heads: Expression, query: Expression) -> Expression:
    """Keys or values, each head as often as there are heads of queries for it."""
    batch, count, keys, size = heads.shape
    times = query.shape[1] // max(count, 1)
    if times == 1:
        return heads
    return heads.insert(2).expand((batch, count, times, keys, size)).reshape((batch, count * times, keys, size))


def gathered(gradient: Expression, heads: Expression) -> Expression:
    """The gradient of heads that were repeated."""
    batch, count, keys, size = heads.shape
    times = gradient.shape[1] // max(count, 1)
    return gradient if times == 1 else gradient.reshape((batch, count, times, keys, size)).sum((2,))


def attention(arguments: Arguments) -> Results:
    """softmax(query * key) * value, and the logarithm of what softmax divides by."""
    query, key, value = (entry.wide() for entry in arguments.tensors("query", "key", "value"))
    key, value = repeated(key, query), repeated(value, query)
    masks = masks_of(arguments, query, key)
    given = options(arguments, query, masks)
    return several("attention", query, key, value, *masks, **given, hidden=-math.inf)


def attention_gradient(arguments: Arguments) -> Results:
    """The gradients for query, key and value; the shares are computed again from the saved logarithm."""
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    gradient, query, *heads, found, logarithm = (entry.wide() for entry in arguments.tensors(*names))
    key, value = (repeated(each, query) for each in heads)
    masks = masks_of(arguments, query, key)
    weight = (gradient * found).sum((found.rank - 1,))
    others = (query, key, value, logarithm, weight, *masks)
    for_query, *for_heads = several("attention_gradient", gradient, *others, **options(arguments, query, masks))
    return for_query, *(gathered(one, each) for one, each in zip(for_heads, heads, strict=True))


ATTENTION: Rules = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_gradient,
}
