"""Lift operators that read or write at given places: gathers, scatters, embeddings and bags of them.

An index out of range stays one: what is taken or written with it raises, as PyTorch's operators do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from weft.ir.extents import Extent, Polynomial, is_same_size, today
from weft.ir.graph import Value
from weft.ir.size_numbers import size_of_number
from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.checks import check_places
from weft.trace.lift.expression import Expression, Number, broadcast_shape, positions

WHOLE = (torch.int32, torch.int64)
OUT_OF_RANGE = torch.iinfo(torch.int64).max


def flat(x: Expression) -> Expression:
    """All elements in a row."""
    return x.reshape((x.kind.size,))


def row(x: Expression) -> Expression:
    """A tensor without dimensions as a row of one element."""
    return x if x.rank else x.reshape((1,))


def embedding(arguments: Arguments) -> Expression:
    """Rows of a table."""
    weight, indices = arguments.tensors("weight", "indices")
    return weight.build("take", flat(indices), dimension=0).reshape((*indices.shape, *weight.shape[1:]))


def embedding_gradient(arguments: Arguments) -> Expression:
    """The sum of gradients for each row of the table; none for the padding row."""
    gradient, indices = arguments.tensors("grad_output", "indices")
    arguments.require(not arguments.literal("scale_grad_by_freq"), "scaled by frequency")
    shape = arguments.result().shape
    rows = gradient.wide().reshape((indices.kind.size, shape[1]))
    column = flat(indices).cast(torch.int64).insert(1)
    padding = arguments.literal("padding_idx")
    if padding >= 0:
        rows = column.apply("eq", padding).choose(0, rows)
    zeros = arguments.full(0, rows.dtype, shape)
    return zeros.build("scatter_add", column.expand(rows.shape), rows, dimension=0)


def index_select(arguments: Arguments) -> Expression:
    """Positions of a dimension, as listed."""
    x, index = map(row, arguments.tensors("self", "index"))
    found = x.build("take", index, dimension=arguments.dimension("dim", x.rank))
    return found.reshape(arguments.result().shape)


def gather(arguments: Arguments) -> Expression:
    """One element for each index."""
    x, index = map(row, arguments.tensors("self", "index"))
    found = x.build("gather", index.cast(torch.int64), dimension=arguments.dimension("dim", x.rank))
    return found.reshape(arguments.result().shape)


def scattered(op: str) -> Rule:
    """Make the rule of an operator that writes or adds a source's elements at given places."""

    def rule(arguments: Arguments) -> Expression:
        x, index = map(row, arguments.tensors("self", "index"))
        dimension = arguments.dimension("dim", x.rank)
        base = x.wide() if op == "scatter_add" else x
        if arguments.has("value"):
            value = arguments.number("value", base.dtype)
            source = base.like(value).expand(index.shape)
        else:
            source = row(arguments.tensor("src"))
            for place, extent in enumerate(index.shape):
                source = source.part(place, 0, extent)
        found = base.build(op, index.cast(torch.int64), source.cast(base.dtype), dimension=dimension)
        return found.reshape(arguments.result().shape)

    return rule


# What joins elements for each reduction, and what joined with anything is that: a number, or an end of the dtype.
JOINS: dict[str, tuple[str, float]] = {
    "sum": ("scatter_add", 0),
    "add": ("scatter_add", 0),
    "mean": ("scatter_add", 0),
    "prod": ("scatter_mul", 1),
    "multiply": ("scatter_mul", 1),
    "amin": ("scatter_min", math.inf),
    "amax": ("scatter_max", -math.inf),
}


def extreme_of(dtype: torch.dtype, end: float) -> Number:
    """A number, or for an infinity the end of an integer dtype that lies there."""
    if dtype.is_floating_point or math.isfinite(end):
        return end if dtype.is_floating_point else int(end)
    limits = torch.iinfo(dtype)
    return limits.max if end > 0 else limits.min


def joined(arguments: Arguments, x: Expression, places: Expression, source: Expression, dimension: int) -> Expression:
    """Elements of a source joined with those at their places, by the call's reduction."""
    reduce = arguments.literal("reduce")
    arguments.require(x.dtype is not torch.bool, "of truth values")
    op, neutral = JOINS[reduce]
    base, source = x.wide(), source.cast(x.dtype).wide()
    whole = not arguments.has("include_self") or arguments.literal("include_self")
    start = base
    if not whole:
        fill = base.like(extreme_of(base.dtype, neutral)).expand(places.shape)
        start = base.build("scatter", places, fill, dimension=dimension)
    found = start.build(op, places, source, dimension=dimension)
    if reduce != "mean":
        return found
    ones = base.like(1)
    count = ones.expand(base.shape) if whole else base.like(0).expand(base.shape)
    count = count.build("scatter_add", places, ones.expand(places.shape), dimension=dimension)
    return found.apply("div" if base.dtype.is_floating_point else "floor_div", count.apply("maximum", 1))


def scatter_reduced(arguments: Arguments) -> Expression:
    """Elements of a source joined with those at given places."""
    x, index = map(row, arguments.tensors("self", "index"))
    if arguments.has("value"):
        source = x.like(arguments.number("value", x.dtype)).expand(index.shape)
    else:
        source = row(arguments.tensor("src"))
        for place, extent in enumerate(index.shape):
            source = source.part(place, 0, extent)
    dimension = arguments.dimension("dim", x.rank)
    return joined(arguments, x, index.cast(torch.int64), source, dimension).reshape(arguments.result().shape)


def index_reduced(arguments: Arguments) -> Expression:
    """Slices of a source joined with those at places of a dimension."""
    x, index = map(row, arguments.tensors("self", "index"))
    dimension = arguments.dimension("dim", x.rank)
    places = column(x, index, dimension)
    source = arguments.tensor("source").reshape(places.shape)
    return joined(arguments, x, places, source, dimension).reshape(arguments.result().shape)


def column(x: Expression, index: Expression, dimension: int) -> Expression:
    """A list of places along a dimension, as an index of the shape that they take."""
    shape = (*x.shape[:dimension], index.kind.size, *x.shape[dimension + 1 :])
    places = flat(index).cast(torch.int64)
    return places.reshape((index.kind.size,) + (1,) * (x.rank - dimension - 1)).expand(shape)


def index_written(op: str, name: str) -> Rule:
    """Make the rule of an operator that writes or adds slices at places of a dimension."""

    def rule(arguments: Arguments) -> Expression:
        x, index = map(row, arguments.tensors("self", "index"))
        dimension = arguments.dimension("dim", x.rank)
        base = x.wide() if op == "scatter_add" else x
        places = column(x, index, dimension)
        source = base.like(arguments.number(name, base.dtype))
        if name == "source":
            source = source.reshape(places.shape)
        if arguments.has("alpha"):
            alpha = arguments.number("alpha", base.dtype)
            source = source * alpha
        return base.build(op, places, source.expand(places.shape), dimension=dimension).reshape(
            arguments.result().shape
        )

    return rule


@dataclass(frozen=True)
class Indexed:
    """x[i, j, :] prepared: the indexed dimensions made one, `index` as places in it, and the shape of what is taken."""

    merged: Expression
    dimension: int
    index: Expression
    order: tuple[int, ...]
    shape: tuple[int, ...]


def indexed(arguments: Arguments, x: Expression) -> Indexed:
    """Prepare tensors of integers as indices."""
    given: tuple[Expression | None, ...] = arguments["indices"]
    at = [dimension for dimension, index in enumerate(given) if index is not None]
    indices = [index for index in given if index is not None]
    arguments.require(bool(at) and all(index.dtype in WHOLE for index in indices), "with a mask or no index")
    extents = [x.shape[dimension] for dimension in at]
    arguments.require(0 not in extents, "of nothing")
    together = at == list(range(at[0], at[-1] + 1))
    first = at[0] if together else 0
    rest = [dimension for dimension in range(x.rank) if dimension not in at]
    order = (*rest[:first], *at, *rest[first:])
    moved = x.permute(order)
    shape = broadcast_shape(*(index.shape for index in indices))
    merged = moved.reshape((*moved.shape[:first], x.count(at), *moved.shape[first + len(at) :]))
    index = linear([index.cast(torch.int64) for index in indices], extents).expand(shape)
    taken = (*merged.shape[:first], *shape, *merged.shape[first + 1 :])
    return Indexed(merged, first, flat(index), order, taken)


def linear(indices: list[Expression], extents: list[int]) -> Expression:
    """Places in dimensions made one; a negative index counts from the end; one out of range stays out of range."""
    if len(indices) == 1:
        return from_end(indices[0], extents[0])
    total: Expression | None = None
    outside: Expression | None = None
    for index, extent in zip(indices, extents, strict=True):
        place = from_end(index, extent)
        strange = place.apply("lt", 0).apply("logical_or", place.apply("ge", extent))
        total = place if total is None else total * extent + place
        outside = strange if outside is None else outside.apply("logical_or", strange)
    assert total is not None
    assert outside is not None
    return outside.choose(OUT_OF_RANGE, total)


def from_end(index: Expression, extent: int) -> Expression:
    """An index counted from the front."""
    return index.apply("lt", 0).choose(index + extent, index)


def index_taken(arguments: Arguments) -> Expression:
    """x[i, j, :]."""
    found = indexed(arguments, arguments.tensor("self"))
    return found.merged.build("take", found.index, dimension=found.dimension).reshape(found.shape)


def index_put(arguments: Arguments) -> Expression:
    """Replace or add to x[i, j, :]."""
    x = arguments.tensor("self")
    accumulate = arguments.literal("accumulate")
    values = arguments.tensor("values").cast(x.dtype)
    mask: Expression | None = arguments["indices"][0]
    is_mask = len(arguments["indices"]) == 1 and mask is not None and mask.dtype is torch.bool
    if mask is not None and is_mask and values.kind.size == 1 and not accumulate:
        wide = mask.reshape((*mask.shape, *(1,) * (x.rank - mask.rank)))
        return wide.choose(values.reshape(()), x)
    found = indexed(arguments, x.wide() if accumulate else x)
    places = column(found.merged, found.index, found.dimension)
    values = values.cast(found.merged.dtype).expand(found.shape).reshape(places.shape)
    op = "scatter_add" if accumulate else "scatter"
    new = found.merged.build(op, places, values, dimension=found.dimension)
    moved = new.reshape(tuple(x.shape[dimension] for dimension in found.order))
    return moved.permute([found.order.index(dimension) for dimension in range(x.rank)])


def taken_flat(arguments: Arguments) -> Expression:
    """Elements of the tensor seen as a row."""
    x, index = arguments.tensors("self", "index")
    arguments.require(x.kind.size > 0, "of nothing")
    row = from_end(flat(index).cast(torch.int64), x.kind.size)
    return flat(x).build("take", row, dimension=0).reshape(index.shape)


INDEXING: Rules = {
    "aten.embedding.default": embedding,
    "aten.embedding_dense_backward.default": embedding_gradient,
    "aten.index_select.default": index_select,
    "aten.gather.default": gather,
    "aten.scatter.src": scattered("scatter"),
    "aten.scatter.value": scattered("scatter"),
    "aten.scatter_add.default": scattered("scatter_add"),
    "aten.scatter_reduce.two": scatter_reduced,
    "aten.scatter.reduce": scatter_reduced,
    "aten.scatter.value_reduce": scatter_reduced,
    "aten.index_reduce.default": index_reduced,
    "aten.index_add.default": index_written("scatter_add", "source"),
    "aten.index_copy.default": index_written("scatter", "source"),
    "aten.index_fill.int_Scalar": index_written("scatter", "value"),
    "aten.index_fill.int_Tensor": index_written("scatter", "value"),
    "aten.index.Tensor": index_taken,
    "aten.index_put.default": index_put,
    "aten._unsafe_index.Tensor": index_taken,
    "aten._unsafe_index_put.default": index_put,
    "aten.take.default": taken_flat,
}

# Bags of one size, as a matrix of indices has them, are a dimension. Others are found from their offsets, which must
# rise from 0 to the number of indices: PyTorch's operator runs where they do not.

SUM, MEAN, MAX = 0, 1, 2


@dataclass(frozen=True)
class Bags:
    """The places of `count` bags in a list of indices: all of one size, or `ids` says to which each index belongs."""

    count: int
    size: int | None
    ids: Expression | None

    def sum(self, x: Expression) -> Expression:
        """The sum of what belongs to each bag, along the first dimension."""
        if self.size is not None:
            return x.reshape((self.count, self.size, *x.shape[1:])).sum((1,))
        return self._joined(x, "scatter_add", 0)

    def extreme(self, x: Expression, op: str, empty: float) -> Expression:
        """The smallest ("min") or largest ("max") that belongs to each bag."""
        if self.size:
            return x.reshape((self.count, self.size, *x.shape[1:])).reduce(op, (1,))
        return self._joined(x, f"scatter_{op}", empty)

    def places(self, x: Expression) -> Expression:
        """Where each of what belongs to bags is: of bags of one size in its own."""
        if self.size is None:
            return positions(x.shape[:1], 0, x.place)
        return flat(positions((self.count, self.size), 1, x.place))

    def spread(self, x: Expression) -> Expression:
        """A number for each bag, at each of its indices."""
        if self.size is not None:
            return x.insert(1).expand((self.count, self.size)).reshape((self.count * self.size,))
        assert self.ids is not None
        return x.build("take", self.ids, dimension=0)

    def _joined(self, x: Expression, op: str, empty: float) -> Expression:
        base = x.like(empty).expand((self.count, *x.shape[1:]))
        if self.ids is None:
            return base
        return base.build(op, column(base, self.ids, 0), x, dimension=0)


def bags_of(arguments: Arguments, indices: int) -> Bags:
    """Where the bags of a call are in its indices."""
    offsets = arguments.tensor("offsets")
    has_end = bool(arguments.literal("include_last_offset"))
    count = offsets.kind.size - has_end
    arguments.require(count >= 0, "without offsets")
    if (size := known_size(offsets, count, indices, has_end=has_end)) is not None:
        return Bags(count, size, None)
    offsets = offsets.cast(torch.int64)
    arguments.require(count > 0, "of no bags")
    last = offsets.part(0, offsets.kind.size - 1, offsets.kind.size)
    check_places(arguments, offsets.part(0, 0, 1), 1)
    if offsets.kind.size > 1:
        steps = offsets.part(0, 1, offsets.kind.size) - offsets.part(0, 0, offsets.kind.size - 1)
        check_places(arguments, steps, indices + 1)
    check_places(arguments, indices - last, 1 if has_end else indices + 1)
    if not indices:
        return Bags(count, None, None)
    places = positions((indices,), 0, arguments.place)
    return Bags(count, None, begun(offsets.part(0, 0, count), places) - 1)


def known_size(offsets: Expression, count: int, indices: int, *, has_end: bool) -> int | None:
    """The size of all bags, where constant offsets say that it is one, or positions times a size do."""
    if offsets.value.op == "mul" and (share := share_of(indices, count)) is not None:
        expression = share.expression if isinstance(share, Extent) else Polynomial.constant(share)
        return share if step_of(offsets.value, expression) == expression else None
    if offsets.value.op != "constant" or not count or indices % count:
        return None
    tensor: torch.Tensor = offsets.value.attributes["tensor"]
    size = indices // count
    return size if torch.equal(tensor, torch.arange(count + has_end, dtype=tensor.dtype) * size) else None


def step_of(steps: Value, size: Polynomial) -> Polynomial | None:
    """How far apart numbers are that begin with 0 and rise evenly, made of the sizes that `size` is made of."""
    first, step = steps.operands
    while step.op == "expand":
        (step,) = step.operands
    if first.op != "iota" or step.op not in ("constant", "scalar"):
        return None
    if step.op == "constant":
        return Polynomial.constant(int(step.attributes["tensor"]))
    return size_of_number(step.operands[0], {atom: Polynomial.atom(atom) for atom in size.atoms()})


def share_of(whole: int, count: int) -> int | None:
    """How many of so many each has, where each has as many at all sizes."""
    if not isinstance(count, Extent):
        share = whole // count if count else 0
        return share if is_same_size(share * count, whole) else None
    found = whole.expression.over_size(count.expression) if isinstance(whole, Extent) else None
    if found is None or not today(count) or today(whole) % today(count):
        return None
    today_share = today(whole) // today(count)
    share = today_share if found.number is not None else Extent(today_share, found)
    return share if is_same_size(share * count, whole) else None


def begun(offsets: Expression, places: Expression) -> Expression:
    """How many of rising offsets are at most each place, at least 1: found by halving."""
    count = offsets.kind.size
    found = places.like(1).expand(places.shape)
    step = 1 << (count - 1).bit_length() >> 1
    while step:
        further = found + step
        offset = offsets.build("take", further.apply("minimum", count) - 1, dimension=0)
        fits = further.apply("le", count).apply("logical_and", offset.apply("le", places))
        found = fits.choose(further, found)
        step >>= 1
    return found.apply("minimum", count)  # which it is; said for whoever asks whether an index can be out of range


def embedding_bag(arguments: Arguments) -> tuple[Expression | None, ...]:
    """One row for each bag; what only the gradient needs is left out."""
    arguments.require(arguments.unread >= {1, 2, 3}, "with more than its first result")
    weight, indices = arguments.tensors("weight", "indices")
    indices = flat(indices)
    bags = bags_of(arguments, indices.kind.size)
    padding = arguments.literal("padding_idx")
    is_padding = indices.apply("eq", padding) if padding >= 0 else None
    rows = weight.build("take", indices, dimension=0).wide()
    factors = arguments.maybe("per_sample_weights")
    if factors is not None:
        rows = rows * flat(factors).cast(rows.dtype).insert(1)
    if arguments.literal("mode") == MAX:
        return largest(bags, rows, is_padding), None, None, None
    found = bags.sum(rows if is_padding is None else is_padding.insert(1).choose(0, rows))
    if arguments.literal("mode") == MEAN:
        found = found / members(bags, indices, is_padding).apply("maximum", 1).cast(found.dtype).insert(1)
    return found, None, None, None


def members(bags: Bags, indices: Expression, is_padding: Expression | None) -> Expression:
    """How many indices count in each bag."""
    ones = indices.like(1).expand(indices.shape).cast(torch.int64)
    return bags.sum(ones if is_padding is None else is_padding.choose(0, ones))


def largest(bags: Bags, rows: Expression, is_padding: Expression | None) -> Expression:
    """The largest of each bag, 0 for an empty one; NaN if the first is NaN, for no other is larger, later ones not."""
    count = rows.shape[0] if bags.size is None else bags.size
    places = bags.places(rows)
    counted = places if is_padding is None else is_padding.choose(count, places)
    first = bags.extreme(counted, "min", count) if count else None
    if first is None:
        return rows.like(0).expand((bags.count, rows.shape[1]))
    later = counted.apply("gt", bags.spread(first)).apply("logical_or", counted.apply("ge", count)).insert(1)
    lost = later.apply("logical_and", rows.apply("isnan"))
    if is_padding is not None:
        lost = lost.apply("logical_or", is_padding.insert(1))
    found = bags.extreme(lost.choose(-math.inf, rows), "max", -math.inf)
    return first.apply("ge", count).insert(1).choose(0, found)


BAGS: Rules = {
    "aten._embedding_bag_forward_only.default": embedding_bag,
    "aten._embedding_bag.default": embedding_bag,
}
