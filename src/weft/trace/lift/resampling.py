"""PyTorch's resampling, to the nearest or between neighbours, with its gradients -> small ops."""

from __future__ import annotations

import torch

from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.expression import Expression, table


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

RESAMPLING: Rules = {
    **{f"aten.upsample_nearest{rank}d.default": nearest(rank) for rank in RANKS},
    **{f"aten._upsample_nearest_exact{rank}d.default": nearest(rank, exact=True) for rank in RANKS},
    **{f"aten.upsample_nearest{rank}d_backward.default": nearest_gradient(rank) for rank in RANKS},
    **{f"aten._upsample_nearest_exact{rank}d_backward.default": nearest_gradient(rank, exact=True) for rank in RANKS},
    **{f"aten.upsample_{LINEAR_NAMES[rank]}.default": linear(rank) for rank in RANKS},
    **{f"aten.upsample_{LINEAR_NAMES[rank]}_backward.default": linear_gradient(rank) for rank in RANKS},
}
