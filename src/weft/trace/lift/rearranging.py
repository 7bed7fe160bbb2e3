"""PyTorch operators that put parts of tensors elsewhere: shuffles, padding by what is there, writes into copies."""

from __future__ import annotations

import math

import torch

from weft.trace.lift.arguments import Arguments, Rules
from weft.trace.lift.expression import Expression, table
from weft.trace.lift.resampling import gathered_back
from weft.trace.lift.writes import diagonal_put, region, slice_range


def pixel_shuffle(arguments: Arguments) -> Expression:
    """Channels spread over squares of pixels."""
    x, times = arguments.tensor("self"), arguments.literal("upscale_factor")
    *batch, channels, height, width = x.shape
    rank = len(batch)
    apart = x.reshape((*batch, channels // times**2, times, times, height, width))
    order = (*range(rank), *(rank + at for at in (0, 3, 1, 4, 2)))
    return apart.permute(order).reshape(arguments.result().shape)


def pixel_unshuffle(arguments: Arguments) -> Expression:
    """Squares of pixels gathered into channels."""
    x, times = arguments.tensor("self"), arguments.literal("downscale_factor")
    *batch, channels, height, width = x.shape
    rank = len(batch)
    apart = x.reshape((*batch, channels, height // times, times, width // times, times))
    order = (*range(rank), *(rank + at for at in (0, 2, 4, 1, 3)))
    return apart.permute(order).reshape(arguments.result().shape)


def channel_shuffle(arguments: Arguments) -> Expression:
    """Channels of all groups in turn."""
    x, groups = arguments.tensor("self"), arguments.literal("groups")
    apart = x.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return apart.transpose(1, 2).reshape(x.shape)


def turned_by_quarters(arguments: Arguments) -> Expression:
    """Two dimensions turned by right angles."""
    x = arguments.tensor("self")
    first, second = (dimension % x.rank for dimension in arguments.literal("dims"))
    turns = arguments.literal("k") % 4
    if turns == 2:
        return x.build("reverse", dimensions=tuple(sorted((first, second))))
    if turns == 1:
        return x.build("reverse", dimensions=(second,)).transpose(first, second)
    return x.build("reverse", dimensions=(first,)).transpose(first, second) if turns else x


def narrowed(arguments: Arguments) -> Expression:
    """A length of a dimension from a start."""
    x = arguments.tensor("self")
    dimension = arguments.dimension("dim", x.rank)
    start = arguments.literal("start") % max(x.shape[dimension], 1)
    return x.part(dimension, start, start + arguments.literal("length"))


def with_position(arguments: Arguments) -> Expression:
    """The tensor with one position of a dimension replaced."""
    x = arguments.tensor("self")
    dimension = arguments.dimension("dim", x.rank)
    index = arguments.literal("index") % x.shape[dimension]
    return region(x, dimension, range(index, index + 1), arguments.tensor("src").cast(x.dtype).insert(dimension))


def with_slice(arguments: Arguments) -> Expression:
    """The tensor with a slice of a dimension replaced."""
    x = arguments.tensor("self")
    dimension = arguments.dimension("dim", x.rank)
    where = slice_range(arguments, x, dimension)
    shape = (*x.shape[:dimension], len(where), *x.shape[dimension + 1 :])
    return region(x, dimension, where, arguments.tensor("src").cast(x.dtype).expand(shape))


def with_diagonal(arguments: Arguments) -> Expression:
    """The tensor with a diagonal replaced."""
    x = arguments.tensor("self")
    return diagonal_put(arguments, x, arguments.tensor("src").cast(x.dtype))


def on_diagonal(arguments: Arguments) -> Expression:
    """A diagonal, with zeros around it."""
    kind = arguments.result()
    name = "grad_output" if arguments.has("grad_output") else "self"
    return diagonal_put(arguments, arguments.full(0, kind.dtype, kind.shape), arguments.tensor(name))


def padding_places(extent: int, before: int, after: int, *, edge: bool) -> torch.Tensor:
    """Which element each element of a padded dimension is: the edge's, or mirrored at it."""
    places = torch.arange(-before, extent + after)
    last = extent - 1
    return places.clamp(0, last) if edge else last - (last - places.abs()).abs()


def padded_by_own(arguments: Arguments) -> Expression:
    """Elements around the edge, from inside."""
    x, counts = arguments.tensor("self"), arguments.literal("padding")
    for index in range(len(counts) // 2):
        dimension, edge = x.rank - 1 - index, "replication" in arguments.target
        places = padding_places(x.shape[dimension], *counts[2 * index : 2 * index + 2], edge=edge)
        x = x.build("take", table(places, x.place), dimension=dimension)
    return x


def padded_by_own_gradient(arguments: Arguments) -> Expression:
    """The gradient of padding: each element's sum over its copies."""
    gradient, counts = arguments.tensor("grad_output").wide(), arguments.literal("padding")
    shape = arguments.result().shape
    for index in range(len(counts) // 2):
        dimension, edge = gradient.rank - 1 - index, "replication" in arguments.target
        places = padding_places(shape[dimension], *counts[2 * index : 2 * index + 2], edge=edge)
        gradient = gathered_back(gradient, dimension, places, shape[dimension])
    return gradient


def masked_taken_back(arguments: Arguments) -> Expression:
    """A gradient where a mask holds, times a factor."""
    gradient, mask = arguments.tensor("grad_output").wide(), arguments.tensor("mask")
    scale = arguments.literal("scale")
    return gradient * mask.cast(gradient.dtype) * (scale if math.isfinite(scale) else 0.0)


REARRANGING: Rules = {
    "aten.pixel_shuffle.default": pixel_shuffle,
    "aten.pixel_unshuffle.default": pixel_unshuffle,
    "aten.channel_shuffle.default": channel_shuffle,
    "aten.rot90.default": turned_by_quarters,
    "aten.narrow_copy.default": narrowed,
    "aten.select_scatter.default": with_position,
    "aten.slice_scatter.default": with_slice,
    "aten.diagonal_scatter.default": with_diagonal,
    "aten.diagonal_backward.default": on_diagonal,
    "aten.diag_embed.default": on_diagonal,
    **{
        f"aten.{kind}_pad{rank}d.default": padded_by_own for kind in ("reflection", "replication") for rank in (1, 2, 3)
    },
    **{
        f"aten.{kind}_pad{rank}d_backward.default": padded_by_own_gradient
        for kind in ("reflection", "replication")
        for rank in (1, 2, 3)
    },
    "aten.native_dropout_backward.default": masked_taken_back,
}
