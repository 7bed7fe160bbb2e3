"""Lift normalisations and their gradients."""

from __future__ import annotations

import torch

from weft.ir.extents import Extent
from weft.ir.types import TensorType
from weft.trace.lift.arguments import Arguments, Results, Rules
from weft.trace.lift.convolutions import channels
from weft.trace.lift.expression import Expression, as_divisor


def variance(x: Expression, middle: Expression, dimensions: tuple[int, ...]) -> Expression:
    """The mean square distance from the mean."""
    gap = x - middle
    return (gap * gap).mean(dimensions, keep=True)


def inverse_root(x: Expression, small: float) -> Expression:
    """1 / sqrt(x + small)."""
    return (x + small).apply("rsqrt")


def affine(x: Expression, weight: Expression | None, bias: Expression | None) -> Expression:
    """Compute x * weight + bias, where they are there."""
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def widened(entry: Expression | None) -> Expression | None:
    """An operand, if there, in the dtype of computation."""
    return None if entry is None else entry.wide()


def normalised_dimensions(arguments: Arguments, rank: int) -> tuple[int, ...]:
    """The last dimensions: those with the sizes that are given."""
    return tuple(range(rank - len(arguments.literal("normalized_shape")), rank))


def layer_norm(arguments: Arguments) -> Results:
    """Normalised over the last dimensions; mean and inverse deviation for the gradient."""
    x = arguments.tensor("input").wide()
    dimensions = normalised_dimensions(arguments, x.rank)
    middle = x.mean(dimensions, keep=True)
    inverse = inverse_root(variance(x, middle, dimensions), arguments.literal("eps"))
    weight, bias = (widened(arguments.maybe(name)) for name in ("weight", "bias"))
    return affine((x - middle) * inverse, weight, bias), middle, inverse


def layer_norm_gradient(arguments: Arguments) -> Results:
    """The gradients for input, weight and bias."""
    gradient, x, middle, inverse = (entry.wide() for entry in arguments.tensors("grad_out", "input", "mean", "rstd"))
    dimensions = normalised_dimensions(arguments, x.rank)
    others = tuple(range(dimensions[0]))
    normal = (x - middle) * inverse
    weight = widened(arguments.maybe("weight"))
    scaled = affine(gradient, weight, None)
    pull = scaled.mean(dimensions, keep=True) + normal * (scaled * normal).mean(dimensions, keep=True)
    return (
        inverse * (scaled - pull) if arguments.wanted(0) else None,
        (gradient * normal).sum(others) if arguments.wanted(1) else None,
        gradient.sum(others) if arguments.wanted(2) else None,
    )


def rms_norm(arguments: Arguments) -> Results:
    """Divided by the root of the mean square over the last dimensions."""
    given = arguments.tensor("input")
    x = given.wide()
    small = arguments.literal("eps")
    dimensions = normalised_dimensions(arguments, x.rank)
    inverse = inverse_root(
        (x * x).mean(dimensions, keep=True), torch.finfo(given.dtype).eps if small is None else small
    )
    return affine(x * inverse, widened(arguments.maybe("weight")), None), inverse


def rms_norm_gradient(arguments: Arguments) -> Results:
    """The gradients for input and weight."""
    gradient, x, inverse = (entry.wide() for entry in arguments.tensors("grad_out", "input", "rstd"))
    dimensions = normalised_dimensions(arguments, x.rank)
    normal = x * inverse
    scaled = affine(gradient, widened(arguments.maybe("weight")), None)
    pull = normal * (scaled * normal).mean(dimensions, keep=True)
    return (
        inverse * (scaled - pull) if arguments.wanted(0) else None,
        (gradient * normal).sum(tuple(range(dimensions[0]))) if arguments.wanted(1) else None,
    )


def group_norm(arguments: Arguments) -> Results:
    """Normalised over groups of channels; mean and inverse deviation for the gradient."""
    given = arguments.tensor("input").wide()
    batch, channel_count, pixels, groups = (arguments.literal(name) for name in ("N", "C", "HxW", "group"))
    arguments.require(given.kind.size > 0, "of nothing")
    x = given.reshape((batch, groups, channel_count // groups * pixels))
    middle = x.mean((2,), keep=True)
    inverse = inverse_root(variance(x, middle, (2,)), arguments.literal("eps"))
    normal = ((x - middle) * inverse).reshape((batch, channel_count, pixels))
    weight, bias = (by_channel(arguments.maybe(name)) for name in ("weight", "bias"))
    found = affine(normal, weight, bias).reshape(given.shape)
    return found, middle.reshape((batch, groups)), inverse.reshape((batch, groups))


def by_channel(entry: Expression | None) -> Expression | None:
    """One number for each channel, if there, for [batch, channels, pixels]."""
    return None if entry is None else channels(entry.wide(), 3)


def group_norm_gradient(arguments: Arguments) -> Results:
    """The gradients for input, weight and bias."""
    whole, given, middle, inverse = (entry.wide() for entry in arguments.tensors("grad_out", "input", "mean", "rstd"))
    batch, channel_count, pixels, groups = (arguments.literal(name) for name in ("N", "C", "HxW", "group"))
    arguments.require(given.kind.size > 0, "of nothing")
    grouped, flat = (batch, groups, channel_count // groups * pixels), (batch, channel_count, pixels)
    middle, inverse = (entry.reshape((batch, groups, 1)) for entry in (middle, inverse))
    normal = (given.reshape(grouped) - middle) * inverse
    gradient = whole.reshape(flat)
    scaled = affine(gradient, by_channel(arguments.maybe("weight")), None).reshape(grouped)
    pull = scaled.mean((2,), keep=True) + normal * (scaled * normal).mean((2,), keep=True)
    return (
        (inverse * (scaled - pull)).reshape(given.shape) if arguments.wanted(0) else None,
        (gradient * normal.reshape(flat)).sum((0, 2)) if arguments.wanted(1) else None,
        gradient.sum((0, 2)) if arguments.wanted(2) else None,
    )


# Batch norm: over all dimensions but that of channels.


def around_channels(x: Expression) -> tuple[int, ...]:
    """All dimensions but that of channels."""
    return (0, *range(2, x.rank))


def batch_norm(arguments: Arguments) -> Results:
    """Normalised over the batch in training, else by the running statistics, which training moves."""
    given = arguments.tensor("input")
    x = given.wide()
    training = arguments.literal("training") if arguments.has("training") else False
    weight, bias = (broadcast(arguments.maybe(name), x.rank) for name in ("weight", "bias"))
    if not training:
        middle, spread = (broadcast(arguments.tensor(name), x.rank) for name in ("running_mean", "running_var"))
        assert middle is not None
        assert spread is not None
        # As a scale and a shift of each channel, like eager: both are made of weights alone.
        scale = affine(inverse_root(spread, arguments.literal("eps")), weight, None)
        shift = -middle * scale if bias is None else bias - middle * scale
        return x * scale + shift, *(empty(arguments, index) for index in (1, 2))
    dimensions = around_channels(x)
    arguments.require(x.kind.size > 0, "of nothing")
    middle = x.mean(dimensions, keep=True)
    spread = variance(x, middle, dimensions)
    inverse = inverse_root(spread, arguments.literal("eps"))
    found = affine((x - middle) * inverse, weight, bias)
    flat = (x.shape[1],)
    statistics = running(arguments, middle.reshape(flat), spread.reshape(flat), x.count(dimensions))
    return found, middle.reshape(flat), inverse.reshape(flat), *statistics


def broadcast(entry: Expression | None, rank: int) -> Expression | None:
    """One number for each channel, if there, as a tensor that broadcasts."""
    return None if entry is None else channels(entry.wide(), rank)


def empty(arguments: Arguments, index: int) -> Expression:
    """A result of which nobody reads an element."""
    kind = arguments.result(index)
    arguments.require(kind.size == 0, "keeps statistics without training")
    return arguments.full(0, kind.dtype, kind.shape)


def running(arguments: Arguments, middle: Expression, spread: Expression, count: int) -> tuple[Expression, ...]:
    """The running statistics moved towards those of this batch; the variance is that of a sample."""
    if len(arguments.declared) == 3:
        return ()
    share = arguments.literal("momentum")
    arguments.require(count > 1, "of a single element for each channel")
    means = arguments.maybe("running_mean"), arguments.maybe("running_var")
    varies = isinstance(count, Extent)
    sample = spread * count / (count - 1) if varies else spread * (count / (count - 1))
    pairs = zip(means, (middle, sample), strict=True)
    return tuple(old.wide() * (1 - share) + new * share for old, new in pairs if old is not None)


def batch_norm_gradient(arguments: Arguments) -> Results:
    """The gradients for input, weight and bias."""
    mistaken = are_mistaken(*(entry.kind for entry in arguments.tensors("grad_out", "input")))
    arguments.require(not mistaken, "takes one order of pixels for the other, and PyTorch's answer is the one to give")
    gradient, x = (entry.wide() for entry in arguments.tensors("grad_out", "input"))
    training = arguments.literal("train")
    dimensions = around_channels(x)
    if training:
        middle, inverse = (broadcast(arguments.tensor(name), x.rank) for name in ("save_mean", "save_invstd"))
    else:
        middle = broadcast(arguments.tensor("running_mean"), x.rank)
        inverse = inverse_root(channels(arguments.tensor("running_var").wide(), x.rank), arguments.literal("eps"))
    assert middle is not None
    assert inverse is not None
    normal = (x - middle) * inverse
    for_bias = gradient.sum(dimensions, keep=True)
    for_weight = (gradient * normal).sum(dimensions, keep=True)
    scale = affine(inverse, broadcast(arguments.maybe("weight"), x.rank), None)
    for_input = gradient * scale
    if training:
        count = as_divisor(x.count(dimensions))
        for_input = (gradient - for_bias / count - normal * (for_weight / count)) * scale
    flat = (x.shape[1],)
    return (
        for_input if arguments.wanted(0) else None,
        for_weight.reshape(flat) if arguments.wanted(1) else None,
        for_bias.reshape(flat) if arguments.wanted(2) else None,
    )


def are_mistaken(gradient: TensorType, values: TensorType) -> bool:
    """Whether PyTorch reads images that lie by rows and images that lie by pixels as if they lay alike.

    Its kernel asks of each whether it lies in one of both orders, where the stride of a dimension of one element does
    not matter, and whether both suggest the same order, where it does.
    """
    rows, pixels = gradient, values
    if not rows.is_contiguous:
        rows, pixels = pixels, rows
    differ = rows.is_contiguous and not pixels.is_contiguous and not lies_by_pixels(rows) and lies_by_pixels(pixels)
    return differ and suggests_pixels(rows) == suggests_pixels(pixels)


IMAGES = (4, 5)  # ranks of images and of volumes


def lies_by_pixels(kind: TensorType) -> bool:
    """Whether the channels of each pixel lie side by side, and the pixels one after the other."""
    return kind.rank in IMAGES and permuted(kind).is_contiguous


def permuted(kind: TensorType) -> TensorType:
    """The same memory with channels as the last dimension."""
    order = (0, *range(2, kind.rank), 1)
    shape, strides = (tuple(numbers[place] for place in order) for numbers in (kind.shape, kind.strides))
    return TensorType(kind.dtype, shape, strides, kind.device)


def suggests_pixels(kind: TensorType) -> bool:
    """Whether strides grow from channels over pixels to the batch, as PyTorch compares them to guess an order."""
    if kind.rank not in IMAGES or kind.strides[1] == 0:
        return False
    least = 0
    for place in (1, *reversed(range(2, kind.rank)), 0):
        if kind.shape[place] == 0 or kind.strides[place] < least:
            return False
        if place == 0 and least == kind.strides[1]:
            return False
        least = kind.strides[place] * max(kind.shape[place], 1)
    return True


NORMS: Rules = {
    "aten.native_layer_norm.default": layer_norm,
    "aten.native_layer_norm_backward.default": layer_norm_gradient,
    "aten._fused_rms_norm.default": rms_norm,
    "aten._fused_rms_norm_backward.default": rms_norm_gradient,
    "aten.native_group_norm.default": group_norm,
    "aten.native_group_norm_backward.default": group_norm_gradient,
    "aten.native_batch_norm.default": batch_norm,
    "aten._native_batch_norm_legit.default": batch_norm,
    "aten._native_batch_norm_legit.no_stats": batch_norm,
    "aten._native_batch_norm_legit_no_training.default": batch_norm,
    "aten.native_batch_norm_backward.default": batch_norm_gradient,
}
