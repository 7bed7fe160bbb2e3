"""Lift operators whose places follow from sizes alone: resampling, shuffles, padding, writes into copies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from weft.ir.extents import Extent, is_same_size
from weft.ir.graph import Place
from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.expression import Expression, constant, positions, table
from weft.trace.lift.writes import diagonal_put, region, slice_range


def factors(arguments: Arguments, rank: int) -> list[float | None]:
    """The factors given for each dimension, None where only the sizes are."""
    if rank == 1:
        return [arguments.literal("scales")]
    return [arguments.literal(f"scales_{letter}") for letter in "dhw"[-rank:]]


IMAGE_RANK = 2


@dataclass(frozen=True)
class Nearest:
    """How PyTorch counts the nearest elements of a dimension of images: in which dtype, by which special cases."""

    exact: bool
    rank: int
    dtype: torch.dtype  # of the images
    is_back: bool = False  # for a gradient

    @property
    def counts_in(self) -> torch.dtype:
        """The dtype of places."""
        return torch.float64 if self.rank == 1 and self.dtype is torch.float64 else torch.float32

    @property
    def shift(self) -> float:
        """Where in an element its place is."""
        return 0.5 if self.exact else 0.0

    @property
    def is_even(self) -> bool:
        """Whether as many elements are the same, and twice as many each twice, whatever the factor says."""
        return not self.exact and (self.is_back or self.rank == IMAGE_RANK)

    def places(self, extent: int, size: int, factor: float | None) -> torch.Tensor:
        """Which element each element of a resampled dimension is."""
        ratio = 1.0 / factor if factor is not None and factor > 0 else extent / size
        if self.is_even and size in (extent, 2 * extent):
            ratio = extent / size
        step = torch.tensor(ratio, dtype=self.counts_in)
        places = torch.arange(size, dtype=self.counts_in) + self.shift
        return (places * step).floor().long().clamp(max=extent - 1)

    def counted(self, extent: int, size: int, factor: float | None, place: Place | None) -> Expression:
        """The same of sizes that vary: computed, by the same arithmetic."""
        dtype = self.counts_in
        ratio = ratio_of(extent, size, factor, dtype, place)
        if self.is_even and factor is not None:
            exactly = ratio_of(extent, size, None, dtype, place)
            whole, half = (exactly.apply("eq", share) for share in (1.0, 0.5))
            ratio = whole.apply("logical_or", half).choose(exactly, ratio)
        steps = positions((size,), 0, place).cast(dtype) + self.shift
        found = (steps * ratio).apply("floor").cast(torch.int64)
        return found.apply("minimum", extent - 1)


def vary(*sizes: int) -> bool:
    """Whether sizes are known only when the program runs: then there are no tables of places, they are computed."""
    return any(isinstance(size, Extent) for size in sizes)


def ratio_of(extent: int, size: int, factor: float | None, dtype: torch.dtype, place: Place | None) -> Expression:
    """How far the elements of a resampled dimension lie apart, of sizes that vary."""
    if factor is not None and factor > 0:
        return constant(1.0 / factor, dtype, (), place)
    one = constant(1.0, dtype, (), place)
    return one.like(extent) / one.like(size)


def nearest(rank: int, *, exact: bool = False) -> Rule:
    """Make the rule of repeating the nearest element."""

    def rule(arguments: Arguments) -> Expression:
        x = arguments.tensor("self")
        sizes, way = arguments.result().shape[2:], Nearest(exact, rank, x.dtype)
        for dimension, (size, factor) in enumerate(zip(sizes, factors(arguments, rank), strict=True), 2):
            extent = x.shape[dimension]
            if not vary(extent, size):
                x = repeated(x, dimension, way.places(extent, size, factor))
            elif (times := exact_times(factor)) and is_same_size(size, extent * times):
                x = spread_out(x, dimension, times)
            else:
                x = x.build("take", way.counted(extent, size, factor, x.place), dimension=dimension)
        return x

    return rule


def exact_times(factor: float | None) -> int:
    """How often each element comes by a factor whose inverse is an exact number, a power of two; 0 by any other."""
    times = int(factor) if factor is not None and factor >= 1 else 0
    return times if times == factor and times.bit_count() == 1 else 0


def repeated(x: Expression, dimension: int, places: torch.Tensor) -> Expression:
    """Elements of a dimension taken at places; equally often, they are repeated."""
    times = even_times(places, x.shape[dimension])
    if times == 0:
        return x.build("take", table(places, x.place), dimension=dimension)
    return spread_out(x, dimension, times)


def spread_out(x: Expression, dimension: int, times: int) -> Expression:
    """Each element of a dimension so many times."""
    wide = (*x.shape[: dimension + 1], times, *x.shape[dimension + 1 :])
    flat = (*x.shape[:dimension], x.shape[dimension] * times, *x.shape[dimension + 1 :])
    return x.insert(dimension + 1).expand(wide).reshape(flat)


def even_times(places: torch.Tensor, extent: int) -> int:
    """How often each place comes, if all come equally often and in order, else 0."""
    times = len(places) // extent
    even = torch.arange(extent).repeat_interleave(times)
    return times if torch.equal(places, even) else 0


MOST_ADDED = 4  # elements that took the same: so few are added up one by one, in one loop with what is around


def gathered_back(gradient: Expression, dimension: int, places: torch.Tensor, extent: int) -> Expression:
    """The gradient of taking elements at places: the sum over all that took each."""
    times = even_times(places, extent)
    if 0 < times <= MOST_ADDED:
        total = gradient.like(0.0)  # -0 and -0 are 0 in a sum
        for place in range(times):
            total = total + gradient.part(dimension, place, extent * times, times)
        return total
    if times:
        apart = (*gradient.shape[:dimension], extent, times, *gradient.shape[dimension + 1 :])
        return gradient.reshape(apart).sum((dimension + 1,))
    shape = (*gradient.shape[:dimension], extent, *gradient.shape[dimension + 1 :])
    column = table(places, gradient.place).reshape((len(places),) + (1,) * (gradient.rank - dimension - 1))
    zeros = (gradient.like(0)).expand(shape)
    return zeros.build("scatter_add", column.expand(gradient.shape), gradient, dimension=dimension)


def nearest_gradient(rank: int, *, exact: bool = False) -> Rule:
    """Make the rule of its gradient."""

    def rule(arguments: Arguments) -> Expression:
        given = arguments.tensor("grad_output")
        gradient, way = given.wide(), Nearest(exact, rank, given.dtype, is_back=True)
        sizes = arguments.literal("input_size")[2:]
        for dimension, (extent, factor) in enumerate(zip(sizes, factors(arguments, rank), strict=True), 2):
            places = way.places(extent, gradient.shape[dimension], factor)
            gradient = gathered_back(gradient, dimension, places, extent)
        return gradient

    return rule


def linear_places(
    extent: int, size: int, factor: float | None, *, corners: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each element of a resampled dimension the two elements it lies between, and how near to the second.

    As many elements are the same, whatever the factor says.
    """
    steps = torch.arange(size, dtype=torch.float64)
    factor = None if size == extent else factor
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
            extent = x.shape[dimension]
            between = counted_between if vary(extent, size) else between_of_tables
            low, high, share = between(extent, size, factor, x, corners=corners)
            weight = column_of(share, x, dimension)
            first, second = (x.build("take", at, dimension=dimension) for at in (low, high))
            x = first * (1 - weight) + second * weight
        return x

    return rule


def between_of_tables(
    extent: int, size: int, factor: float | None, x: Expression, *, corners: bool
) -> tuple[Expression, Expression, Expression]:
    """What `linear_places` gives, in tables."""
    low, high, share = linear_places(extent, size, factor, corners=corners)
    return table(low, x.place), table(high, x.place), table(share.to(x.dtype), x.place)


def counted_between(
    extent: int, size: int, factor: float | None, x: Expression, *, corners: bool
) -> tuple[Expression, Expression, Expression]:
    """The same of sizes that vary: computed, by the same arithmetic."""
    steps = positions((size,), 0, x.place).cast(torch.float64)
    if corners:
        one = steps.like(1.0)
        source = steps * ((one.like(extent) - 1) / (one.like(size) - 1).apply("maximum", 1.0))
    else:
        ratio, exactly = (ratio_of(extent, size, known, torch.float64, x.place) for known in (factor, None))
        ratio = exactly.apply("eq", 1.0).choose(exactly, ratio)
        source = ((steps + 0.5) * ratio - 0.5).apply("maximum", 0.0)
    low = source.apply("floor").cast(torch.int64)
    last = extent - 1  # of which what follows knows that places are not beyond it
    low = low.apply("minimum", last)
    share = (source - low.cast(torch.float64)).apply("maximum", 0.0).apply("minimum", 1.0)
    return low, (low + 1).apply("minimum", last), share.cast(x.dtype)


def column_of(share: Expression, x: Expression, dimension: int) -> Expression:
    """Numbers along one dimension, as a tensor that broadcasts."""
    return share.reshape((*share.shape,) + (1,) * (x.rank - dimension - 1))


def linear_gradient(rank: int) -> Rule:
    """Make the rule of its gradient."""

    def rule(arguments: Arguments) -> Expression:
        gradient, corners = arguments.tensor("grad_output").wide(), arguments.literal("align_corners")
        sizes = arguments.literal("input_size")[2:]
        for dimension, (extent, factor) in enumerate(zip(sizes, factors(arguments, rank), strict=True), 2):
            low, high, share = linear_places(extent, gradient.shape[dimension], factor, corners=corners)
            weight = column_of(table(share.to(gradient.dtype), gradient.place), gradient, dimension)
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
