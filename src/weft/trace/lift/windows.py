"""Lift pooling and its gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from weft.errors import UsageError
from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.expression import Expression, positions, several, table
from weft.trace.lift.rearranging import column_of, gathered_back

VOLUME = 3
PER_DIMENSION = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}  # and what leaves a dimension as it is


def window_attributes(arguments: Arguments, rank: int) -> dict[str, Any]:
    """The window of a pooling operator; without a stride it moves by its own size."""
    found: dict[str, Any] = {"kernel_size": arguments.integers("kernel_size", rank)}
    stride = arguments.literal("stride")
    found["stride"] = arguments.integers("stride", rank) if stride else found["kernel_size"]
    found["padding"] = arguments.integers("padding", rank)
    found["ceil_mode"] = arguments.literal("ceil_mode")
    if arguments.has("dilation"):
        found["dilation"] = arguments.integers("dilation", rank)
    else:
        found["count_include_pad"] = arguments.literal("count_include_pad")
        found["divisor_override"] = arguments.literal("divisor_override")
    return found


def batched(x: Expression, rank: int) -> Expression:
    """A batch of channels; a single entry becomes a batch of one."""
    return x if x.rank == rank + 2 else x.insert(0)


def max_pool(rank: int) -> Rule:
    """Make the rule of max pooling."""

    def rule(arguments: Arguments) -> tuple[Expression, ...]:
        x = batched(arguments.tensor("self").wide(), rank)
        window = window_attributes(arguments, rank)
        values, indices = largest_of_volume(x, window) if rank == VOLUME else several("max_pool", x, **window)
        return values.reshape(arguments.result(0).shape), indices.reshape(arguments.result(1).shape)

    return rule


def largest_of_volume(x: Expression, window: dict[str, Any]) -> tuple[Expression, Expression]:
    """The largest of each window of a volume: of each layer, then of the layers, both as of images."""
    batch, channels, layers, height, width = x.shape
    sides = {name: window[name][1:] for name in PER_DIMENSION}
    depth = {name: (window[name][0], alone) for name, alone in PER_DIMENSION.items()}
    ceil = {"ceil_mode": window["ceil_mode"]}
    of_layers, places = several("max_pool", x.reshape((batch, channels * layers, height, width)), **sides, **ceil)
    columns = (batch, channels, layers, prod(of_layers.shape[2:]))
    values, chosen = several("max_pool", of_layers.reshape(columns), **depth, **ceil)
    flat = chosen.reshape((batch, channels, prod(chosen.shape[2:])))
    place = places.reshape((batch, channels, prod(columns[2:]))).build("gather", flat, dimension=2)
    layer = flat.apply("floor_div", columns[3])
    return values, layer * (height * width) + place


def max_pool_gradient(rank: int, *, adaptive: bool = False) -> Rule:
    """Make the rule of the gradient of max pooling, or of max pooling to a given size."""

    def rule(arguments: Arguments) -> Expression:
        entries = (batched(entry, rank) for entry in arguments.tensors("grad_output", "self", "indices"))
        gradient, x, indices = entries
        shape = arguments.result().shape
        window = even_window(x, gradient.shape[2:]) if adaptive else window_attributes(arguments, rank)
        if window is None:
            raise UsageError("windows of unequal sizes")
        if lie_apart(window, x, gradient):
            taken = spread(indices, window["kernel_size"], x.shape).apply("eq", place_in_plane(x))
            return taken.choose(spread(gradient, window["kernel_size"], x.shape), 0).reshape(shape)
        return gradient.wide().build("max_pool_gradient", x.wide(), indices, **window).reshape(shape)

    return rule


def average_pool(rank: int) -> Rule:
    """Make the rule of average pooling."""

    def rule(arguments: Arguments) -> Expression:
        x = batched(arguments.tensor("self").wide(), rank)
        return x.build("average_pool", **window_attributes(arguments, rank)).reshape(arguments.result().shape)

    return rule


def average_pool_gradient(rank: int) -> Rule:
    """Make the rule of average pooling's gradient."""

    def rule(arguments: Arguments) -> Expression:
        gradient, x = (batched(entry.wide(), rank) for entry in arguments.tensors("grad_output", "self"))
        window, shape = window_attributes(arguments, rank), arguments.result().shape
        if lie_apart(window, x, gradient):
            divisor = window["divisor_override"] or prod(window["kernel_size"])
            return spread(gradient / float(divisor), window["kernel_size"], x.shape).reshape(shape)
        return gradient.build("average_pool_gradient", x, **window).reshape(shape)

    return rule


def lie_apart(window: dict[str, Any], x: Expression, pooled: Expression) -> bool:
    """Whether windows neither overlap nor leave gaps, and all lie inside."""
    size = window["kernel_size"]
    extents = zip(x.shape[2:], pooled.shape[2:], size, strict=True)
    return (
        window["stride"] == size
        and not any(window["padding"])
        and set(window.get("dilation", (1,))) == {1}
        and all(count * width <= extent for extent, count, width in extents)
    )


def spread(pooled: Expression, size: tuple[int, ...], shape: tuple[int, ...]) -> Expression:
    """Each element for all of its window, zeros behind the last one."""
    counts = pooled.shape[2:]
    single = tuple(entry for count in counts for entry in (count, 1))
    wide = tuple(entry for count, width in zip(counts, size, strict=True) for entry in (count, width))
    filled = tuple(count * width for count, width in zip(counts, size, strict=True))
    front = pooled.shape[:2]
    found = pooled.reshape((*front, *single)).expand((*front, *wide)).reshape((*front, *filled))
    high = tuple(extent - size for extent, size in zip(shape, found.shape, strict=True))
    return found.build("pad", low=(0,) * len(shape), high=high, value=0) if any(high) else found


def place_in_plane(x: Expression) -> Expression:
    """How far each element is behind the first of its plane, row by row."""
    place = positions(x.shape, x.rank - 1, x.place)
    for dimension in range(2, x.rank - 1):
        place = place + positions(x.shape, dimension, x.place) * prod(x.shape[dimension + 1 :])
    return place


def even_window(x: Expression, sizes: tuple[int, ...]) -> dict[str, Any] | None:
    """The window of adaptive pooling, or None where the sizes do not divide."""
    extents = x.shape[2:]
    if not all(size and extent and extent % size == 0 for extent, size in zip(extents, sizes, strict=True)):
        return None
    window = tuple(extent // size for extent, size in zip(extents, sizes, strict=True))
    none = (0,) * len(window)
    return {"kernel_size": window, "stride": window, "padding": none, "ceil_mode": False}


MEAN = {"count_include_pad": True, "divisor_override": None}
MOST_WINDOWS = 64


def uneven_windows(arguments: Arguments, extent: int, size: int) -> list[range]:
    """The windows of adaptive pooling along one dimension."""
    arguments.require(0 < size <= MOST_WINDOWS and extent > 0, "with many windows of unequal sizes")
    return [range(at * extent // size, -(-(at + 1) * extent // size)) for at in range(size)]


def adaptive_average_pool(rank: int) -> Rule:
    """Make the rule of average pooling to a given size."""

    def rule(arguments: Arguments) -> Expression:
        x, shape = batched(arguments.tensor("self").wide(), rank), arguments.result().shape
        window = even_window(x, shape[-rank:])
        if window is not None:
            return x.build("average_pool", **window, **MEAN).reshape(shape)
        for dimension, size in enumerate(shape[-rank:], 2):
            windows = uneven_windows(arguments, x.shape[dimension], size)
            means = [x.part(dimension, at.start, at.stop).mean((dimension,), keep=True) for at in windows]
            x = means[0].join(means[1:], dimension)
        return x.reshape(shape)

    return rule


def adaptive_average_pool_gradient(rank: int) -> Rule:
    """Make the rule of its gradient."""

    def rule(arguments: Arguments) -> Expression:
        gradient, x = (batched(entry.wide(), rank) for entry in arguments.tensors("grad_output", "self"))
        shape = arguments.result().shape
        window = even_window(x, gradient.shape[2:])
        if window is not None:
            return gradient.build("average_pool_gradient", x, **window, **MEAN).reshape(shape)
        for dimension, extent in enumerate(x.shape[2:], 2):
            windows = uneven_windows(arguments, extent, gradient.shape[dimension])
            owners = torch.tensor([owner for owner, window in enumerate(windows) for _ in window])
            shares = torch.tensor([1.0 / len(window) for window in windows for _ in window], dtype=torch.float64)
            spread = gradient.build("take", table(owners, gradient.place), dimension=dimension)
            spread = spread * column_of(table(shares.to(spread.dtype), spread.place), spread, dimension)
            places = torch.tensor([place for window in windows for place in window])
            gradient = gathered_back(spread, dimension, places, extent)
        return gradient.reshape(shape)

    return rule


def adaptive_max_pool(rank: int) -> Rule:
    """Make the rule of max pooling to a given size."""

    def rule(arguments: Arguments) -> tuple[Expression, ...]:
        x, shape = batched(arguments.tensor("self").wide(), rank), arguments.result().shape
        window = even_window(x, shape[-rank:])
        arguments.require(window is not None, "with windows of unequal sizes")
        values, indices = several("max_pool", x, **(window or {}), dilation=(1,) * rank)
        return values.reshape(shape), indices.reshape(shape)

    return rule


WINDOWS: Rules = {
    **{f"aten.max_pool{rank}d_with_indices.default": max_pool(rank) for rank in (2, 3)},
    **{f"aten.max_pool{rank}d_with_indices_backward.default": max_pool_gradient(rank) for rank in (2, 3)},
    **{f"aten.avg_pool{rank}d.default": average_pool(rank) for rank in (2, 3)},
    **{f"aten.avg_pool{rank}d_backward.default": average_pool_gradient(rank) for rank in (2, 3)},
    **{f"aten._adaptive_avg_pool{rank}d.default": adaptive_average_pool(rank) for rank in (2, 3)},
    **{f"aten._adaptive_avg_pool{rank}d_backward.default": adaptive_average_pool_gradient(rank) for rank in (2, 3)},
    **{f"aten.adaptive_max_pool{rank}d.default": adaptive_max_pool(rank) for rank in (2, 3)},
    **{f"aten.adaptive_max_pool{rank}d_backward.default": max_pool_gradient(rank, adaptive=True) for rank in (2, 3)},
}
