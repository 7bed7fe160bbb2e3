"""Lift PyTorch's fused attention, with its gradient, to products and softmax.

The shape is the same everywhere, so that a later stage finds it: mul of the query by the scale, matmul, add of the
mask, select of what is causal, max, sub, exp, sum, div, select (only with a mask: rows without any key), matmul.
Scaling the query loses less than scaling the products, which are larger.
"""

from __future__ import annotations

import math

import torch

from weft.trace.lift.arguments import Arguments, Results, Rules
from weft.trace.lift.expression import Expression, positions


def scores(arguments: Arguments, query: Expression, key: Expression) -> Expression:
    """How much each query, already scaled, looks at each key, masked, before softmax."""
    arguments.require(arguments.literal("dropout_p") == 0, "with dropout")
    arguments.require(query.shape[-1] > 0 and key.shape[-2] > 0, "of nothing")
    found = query.matmul(key.transpose(-1, -2))
    mask = arguments.maybe("attn_mask")
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = mask.choose(mask.cast(found.dtype).like(0.0), mask.cast(found.dtype).like(-math.inf))
        found = found + mask.wide().cast(found.dtype)
    if arguments.literal("is_causal"):
        rows, columns = (positions(found.shape[-2:], dimension, found.place) for dimension in (0, 1))
        found = columns.apply("gt", rows).choose(-math.inf, found)
    return found


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


def scale_of(arguments: Arguments, query: Expression) -> float:
    """The factor of the scores."""
    given = arguments.literal("scale")
    return 1.0 / math.sqrt(query.shape[-1]) if given is None else float(given)


def attention(arguments: Arguments) -> Results:
    """softmax(query * key) * value, and the logarithm of what softmax divides by."""
    query, key, value = (entry.wide() for entry in arguments.tensors("query", "key", "value"))
    key, value = repeated(key, query), repeated(value, query)
    found = scores(arguments, query * scale_of(arguments, query), key)
    last = (found.rank - 1,)
    highest = found.reduce("max", last, keep=True)
    grown = (found - highest).apply("exp")
    total = grown.sum(last, keep=True)
    # A row that is masked from end to end gives zeros, as PyTorch's kernel does.
    masked = highest.apply("eq", -math.inf)
    shares = grown / total
    if arguments.maybe("attn_mask") is not None:
        shares = masked.choose(0, shares)
    return shares.matmul(value), (total.apply("log") + highest).reshape(found.shape[:-1])


def attention_gradient(arguments: Arguments) -> Results:
    """The gradients for query, key and value; the shares are computed again from the saved logarithm."""
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    gradient, query, *given, found, total = (entry.wide() for entry in arguments.tensors(*names))
    key, value = (repeated(heads, query) for heads in given)
    scale = scale_of(arguments, query)
    scaled = query * scale
    inner = scores(arguments, scaled, key)
    shares = (inner - total.insert(total.rank)).apply("exp")
    if arguments.maybe("attn_mask") is not None:
        shares = inner.apply("eq", -math.inf).choose(0, shares)
    for_value = shares.transpose(-1, -2).matmul(gradient)
    pull = gradient.matmul(value.transpose(-1, -2))
    weight = (gradient * found).sum((found.rank - 1,), keep=True)
    slope = shares * (pull - weight)
    for_key = slope.transpose(-1, -2).matmul(scaled)
    return slope.matmul(key) * scale, gathered(for_key, given[0]), gathered(for_value, given[1])


ATTENTION: Rules = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_gradient,
}
