"""PyTorch's convolutions, pooling and resampling, with their gradients -> small ops."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from weft.errors import UsageError
from weft.trace.expression import Expression, positions, several, table
from weft.trace.lift_arguments import Arguments, Rule, Rules
from weft.trace.lift_volumes import convolve_volumes, convolve_volumes_back, weigh_volumes

# Convolutions.

LINE, VOLUME = 1, 3  # the dimensions of a convolution over lines, and of one over volumes


def convolution_attributes(arguments: Arguments) -> dict[str, Any]:
    """How a window moves; one over lines is one over images of one row."""
    rank = arguments.tensor("weight").rank - 2
    found: dict[str, Any] = {name: arguments.integers(name, rank) for name in ("stride", "padding", "dilation")}
    if rank == LINE:
        found = {name: (0 if name == "padding" else 1, *sizes) for name, sizes in found.items()}
    return {**found, "groups": arguments.literal("groups")}


def as_images(x: Expression) -> Expression:
    """Lines as images of one row, which kernels are made for; images as they are."""
    return x.insert(2) if x.rank == LINE + 2 else x


def convolution(arguments: Arguments) -> Expression:
    """A convolution, plain or transposed, with its bias."""
    x, weight = (as_images(entry.wide()) for entry in arguments.tensors("input", "weight"))
    given, shape = convolution_attributes(arguments), arguments.result().shape
    if arguments.literal("transposed"):
        images = (*shape[:2], *(1,) * (x.rank - len(shape)), *shape[2:])
        found = convolved_back(x, weight, images, given)
    else:
        found = convolved(x, weight, given)
    found, bias = found.reshape(shape), arguments.maybe("bias")
    return found if bias is None else found + channels(bias.wide(), found.rank)


def convolved(x: Expression, weight: Expression, given: dict[str, Any]) -> Expression:
    """A convolution of images or volumes."""
    return convolve_volumes(x, weight, given) if of_volumes(x) else x.build("convolution", weight, **given)


def convolved_back(
    gradient: Expression, weight: Expression, shape: tuple[int, ...], given: dict[str, Any]
) -> Expression:
    """The gradient for what a convolution of images or volumes reads."""
    if of_volumes(gradient):
        return convolve_volumes_back(gradient, weight, shape, given)
    if of_one_pixel(gradient, weight, shape, given):
        seen = weight
        for dimension, padding in enumerate(given["padding"], 2):
            seen = seen.part(dimension, padding, padding + shape[dimension])
        flat = gradient.reshape(gradient.shape[:2]).matmul(seen.reshape((weight.shape[0], prod(shape[1:]))))
        return flat.reshape(shape)
    return gradient.build("convolution_input_gradient", weight, shape=shape, **given)


def of_one_pixel(gradient: Expression, weight: Expression, shape: tuple[int, ...], given: dict[str, Any]) -> bool:
    """Tell whether what a convolution reads gets something from one pixel only, by another place of the window each."""
    places = zip(shape[2:], weight.shape[2:], given["padding"], strict=True)
    inside = all(padding + extent <= size for extent, size, padding in places)
    return inside and set(gradient.shape[2:]) == {1} and given["groups"] == 1 and set(given["dilation"]) == {1}


def weighed(x: Expression, gradient: Expression, shape: tuple[int, ...], given: dict[str, Any]) -> Expression:
    """The gradient for the weight of a convolution of images or volumes."""
    if of_volumes(x):
        return weigh_volumes(x, gradient, shape, given)
    return x.build("convolution_weight_gradient", gradient, shape=shape, **given)


def of_volumes(x: Expression) -> bool:
    """Tell whether a batch is one of volumes."""
    return x.rank == VOLUME + 2


def channels(x: Expression, rank: int) -> Expression:
    """One number for each channel as a tensor that broadcasts."""
    return x.reshape((1, *x.shape, *(1,) * (rank - 2)))


def convolution_gradient(arguments: Arguments) -> tuple[Expression | None, ...]:
    """The gradients for input, weight and bias."""
    entries = arguments.tensors("grad_output", "input", "weight")
    gradient, x, weight = (as_images(entry.wide()) for entry in entries)
    given = convolution_attributes(arguments)
    for_input = for_weight = for_bias = None
    transposed = arguments.literal("transposed")
    if arguments.wanted(0):
        if transposed:
            for_input = convolved(gradient, weight, given)
        else:
            for_input = convolved_back(gradient, weight, x.shape, given)
        for_input = for_input.reshape(entries[1].shape)
    if arguments.wanted(1):
        left, right = (gradient, x) if transposed else (x, gradient)
        for_weight = weighed(left, right, weight.shape, given)
        for_weight = for_weight.reshape(entries[2].shape)
    if arguments.wanted(2):
        for_bias = gradient.sum([0, *range(2, gradient.rank)])
    return for_input, for_weight, for_bias


# Pooling.


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
        values, indices = several("max_pool", x, **window_attributes(arguments, rank))
        return values.reshape(arguments.result(0).shape), indices.reshape(arguments.result(1).shape)

    return rule


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
            spread = spread * column_of(shares, spread, dimension)
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


# Resampling.


def factors(arguments: Arguments, rank: int) -> list[float | None]:
    """The factors given for each dimension, None where only the sizes are."""
    if rank == 1:
        return [arguments.literal("scales")]
    return [arguments.literal(f"scales_{letter}") for letter in "dhw"[-rank:]]


def nearest_places(extent: int, size: int, factor: float | None, *, exact: bool) -> torch.Tensor:
    """Which element each element of a resampled dimension is; in float32, as PyTorch counts."""
    ratio = 1.0 / factor if factor is not None and factor > 0 else extent / size
    step = torch.tensor(ratio, dtype=torch.float32)
    places = torch.arange(size, dtype=torch.float32) + (0.5 if exact else 0.0)
    return (places * step).floor().long().clamp(max=extent - 1)


def nearest(rank: int, *, exact: bool = False) -> Rule:
    """Make the rule of repeating the nearest element."""

    def rule(arguments: Arguments) -> Expression:
        x = arguments.tensor("self")
        sizes = arguments.result().shape[2:]
        for dimension, (size, factor) in enumerate(zip(sizes, factors(arguments, rank), strict=True), 2):
            extent = x.shape[dimension]
            places = nearest_places(extent, size, factor, exact=exact)
            x = repeated(x, dimension, places)
        return x

    return rule


def repeated(x: Expression, dimension: int, places: torch.Tensor) -> Expression:
    """Elements of a dimension taken at places; equally often, they are repeated."""
    extent, times = x.shape[dimension], even_times(places, x.shape[dimension])
    if times == 0:
        return x.build("take", table(places, x.place), dimension=dimension)
    wide = (*x.shape[: dimension + 1], times, *x.shape[dimension + 1 :])
    flat = (*x.shape[:dimension], extent * times, *x.shape[dimension + 1 :])
    return x.insert(dimension + 1).expand(wide).reshape(flat)


def even_times(places: torch.Tensor, extent: int) -> int:
    """How often each place comes, if all come equally often and in order, else 0."""
    times = len(places) // extent
    even = torch.arange(extent).repeat_interleave(times)
    return times if torch.equal(places, even) else 0


def gathered_back(gradient: Expression, dimension: int, places: torch.Tensor, extent: int) -> Expression:
    """The gradient of taking elements at places: the sum over all that took each."""
    if times := even_times(places, extent):
        apart = (*gradient.shape[:dimension], extent, times, *gradient.shape[dimension + 1 :])
        return gradient.reshape(apart).sum((dimension + 1,))
    shape = (*gradient.shape[:dimension], extent, *gradient.shape[dimension + 1 :])
    column = table(places, gradient.place).reshape((len(places),) + (1,) * (gradient.rank - dimension - 1))
    zeros = (gradient.like(0)).expand(shape)
    return zeros.build("scatter_add", column.expand(gradient.shape), gradient, dimension=dimension)


def nearest_gradient(rank: int, *, exact: bool = False) -> Rule:
    """Make the rule of its gradient."""

    def rule(arguments: Arguments) -> Expression:
        gradient = arguments.tensor("grad_output").wide()
        sizes = arguments.literal("input_size")[2:]
        for dimension, (extent, factor) in enumerate(zip(sizes, factors(arguments, rank), strict=True), 2):
            places = nearest_places(extent, gradient.shape[dimension], factor, exact=exact)
            gradient = gathered_back(gradient, dimension, places, extent)
        return gradient

    return rule


def linear_places(
    extent: int, size: int, factor: float | None, *, corners: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each element of a resampled dimension the two elements it lies between, and how near to the second."""
    steps = torch.arange(size, dtype=torch.float64)
    if corners:
        source = steps * ((extent - 1) / (size - 1) if size > 1 else 0.0)
    else:
        ratio = 1.0 / factor if factor is not None and factor > 0 else extent / size
        source = ((steps + 0.5) * ratio - 0.5).clamp(min=0.0)
    low = source.floor().long().clamp(max=extent - 1)
    return low, (low + 1).clamp(max=extent - 1), (source - low).clamp(0.0, 1.0)


def linear(rank: int) -> Rule:
    """Make the rule of linear interpolation, one dimension after the other."""

    def rule(arguments: Arguments) -> Expression:
        x, corners = arguments.tensor("self").wide(), arguments.literal("align_corners")
        arguments.require(x.dtype.is_floating_point, "between integers")
        sizes = arguments.result().shape[2:]
        for dimension, (size, factor) in enumerate(zip(sizes, factors(arguments, rank), strict=True), 2):
            low, high, share = linear_places(x.shape[dimension], size, factor, corners=corners)
            weight = column_of(share, x, dimension)
            first, second = (x.build("take", table(at, x.place), dimension=dimension) for at in (low, high))
            x = first * (1 - weight) + second * weight
        return x

    return rule


def column_of(share: torch.Tensor, x: Expression, dimension: int) -> Expression:
    """Numbers along one dimension, as a tensor that broadcasts."""
    return table(share.to(x.dtype), x.place).reshape((len(share),) + (1,) * (x.rank - dimension - 1))


def linear_gradient(rank: int) -> Rule:
    """Make the rule of its gradient."""

    def rule(arguments: Arguments) -> Expression:
        gradient, corners = arguments.tensor("grad_output").wide(), arguments.literal("align_corners")
        sizes = arguments.literal("input_size")[2:]
        for dimension, (extent, factor) in enumerate(zip(sizes, factors(arguments, rank), strict=True), 2):
            low, high, share = linear_places(extent, gradient.shape[dimension], factor, corners=corners)
            weight = column_of(share, gradient, dimension)
            first = gathered_back(gradient * (1 - weight), dimension, low, extent)
            gradient = first + gathered_back(gradient * weight, dimension, high, extent)
        return gradient

    return rule


LINEAR_NAMES = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}
RANKS = (1, 2, 3)

WINDOWS: Rules = {
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_gradient,
    **{f"aten.max_pool{rank}d_with_indices.default": max_pool(rank) for rank in (2, 3)},
    **{f"aten.max_pool{rank}d_with_indices_backward.default": max_pool_gradient(rank) for rank in (2, 3)},
    **{f"aten.avg_pool{rank}d.default": average_pool(rank) for rank in (2, 3)},
    **{f"aten.avg_pool{rank}d_backward.default": average_pool_gradient(rank) for rank in (2, 3)},
    **{f"aten._adaptive_avg_pool{rank}d.default": adaptive_average_pool(rank) for rank in (2, 3)},
    **{f"aten._adaptive_avg_pool{rank}d_backward.default": adaptive_average_pool_gradient(rank) for rank in (2, 3)},
    **{f"aten.adaptive_max_pool{rank}d.default": adaptive_max_pool(rank) for rank in (2, 3)},
    **{f"aten.adaptive_max_pool{rank}d_backward.default": max_pool_gradient(rank, adaptive=True) for rank in (2, 3)},
    **{f"aten.upsample_nearest{rank}d.default": nearest(rank) for rank in RANKS},
    **{f"aten._upsample_nearest_exact{rank}d.default": nearest(rank, exact=True) for rank in RANKS},
    **{f"aten.upsample_nearest{rank}d_backward.default": nearest_gradient(rank) for rank in RANKS},
    **{f"aten._upsample_nearest_exact{rank}d_backward.default": nearest_gradient(rank, exact=True) for rank in RANKS},
    **{f"aten.upsample_{LINEAR_NAMES[rank]}.default": linear(rank) for rank in RANKS},
    **{f"aten.upsample_{LINEAR_NAMES[rank]}_backward.default": linear_gradient(rank) for rank in RANKS},
}
