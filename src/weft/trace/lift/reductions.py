"""Lift operators that reduce dimensions, with softmax, norms and the first of an order."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from weft.ir.extents import Extent
from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.expression import Expression, as_divisor
from weft.trace.lift.writes import diagonal_places


def summand(arguments: Arguments) -> Expression:
    """The operand in the dtype in which PyTorch adds it up."""
    x, dtype = arguments.tensor("self"), arguments.result().dtype
    return x.cast(dtype).wide()


def over(arguments: Arguments, rank: int) -> tuple[tuple[int, ...], bool]:
    """The dimensions that an operator reduces, and whether they stay with size 1."""
    keep = bool(arguments.literal("keepdim")) if arguments.has("keepdim") else False
    name = "dim" if arguments.has("dim") else "dims"
    return (arguments.dimensions(name, rank) if arguments.has(name) else tuple(range(rank))), keep


def accumulated(op: str) -> Rule:
    """Make the rule of a sum or product."""

    def rule(arguments: Arguments) -> Expression:
        x = summand(arguments)
        dimensions, keep = over(arguments, x.rank)
        return x.reduce(op, dimensions, keep=keep)

    return rule


def mean(arguments: Arguments) -> Expression:
    """The mean."""
    x = summand(arguments)
    dimensions, keep = over(arguments, x.rank)
    return x.mean(dimensions, keep=keep)


def sum_of_numbers(arguments: Arguments) -> Expression:
    """The sum without what is not a number."""
    x = summand(arguments)
    dimensions, keep = over(arguments, x.rank)
    return x.apply("ne", x).choose(0, x).sum(dimensions, keep=keep)


def trace_of_matrix(arguments: Arguments) -> Expression:
    """The sum of the diagonal."""
    x = summand(arguments)
    flat, where = diagonal_places(x, 0, 1, 0)
    return flat.part(0, where.start, where.stop, where.step).sum((0,))


def extreme(op: str) -> Rule:
    """Make the rule of the largest or smallest."""

    def rule(arguments: Arguments) -> Expression:
        x = arguments.tensor("self")
        dimensions, keep = over(arguments, x.rank)
        return x.reduce(op, dimensions, keep=keep)

    return rule


def extreme_with_place(op: str) -> Rule:
    """Make the rule of the largest or smallest along a dimension, and where it is."""

    def rule(arguments: Arguments) -> tuple[Expression, ...]:
        x = arguments.tensor("self")
        if x.rank == 0:
            return x, arguments.full(0, torch.int64)
        dimension, keep = arguments.dimension("dim", x.rank), arguments.literal("keepdim")
        return x.reduce(op, (dimension,), keep=keep), place_of(x, f"arg{op}", dimension, keep=keep)

    return rule


def extremes(arguments: Arguments) -> tuple[Expression, ...]:
    """The smallest and the largest."""
    x = arguments.tensor("self")
    if arguments.literal("dim") is None:
        dimensions: tuple[int, ...] = tuple(range(x.rank))
    else:
        dimensions = arguments.dimensions("dim", x.rank)
    keep = arguments.literal("keepdim")
    return x.reduce("min", dimensions, keep=keep), x.reduce("max", dimensions, keep=keep)


def place_of(x: Expression, op: str, dimension: int | None, *, keep: bool) -> Expression:
    """Where the largest or smallest is."""
    number = x.cast(torch.uint8) if x.dtype is torch.bool else x
    return number.build(op, dimension=dimension, keep=keep)


def position(op: str) -> Rule:
    """Make the rule of argmax or argmin."""

    def rule(arguments: Arguments) -> Expression:
        x, dimension = arguments.tensor("self"), arguments.literal("dim")
        if x.rank == 0:
            return arguments.full(0, torch.int64)
        return place_of(x, op, None if dimension is None else dimension % x.rank, keep=arguments.literal("keepdim"))

    return rule


def question(op: str) -> Rule:
    """Make the rule of any or all."""

    def rule(arguments: Arguments) -> Expression:
        x = arguments.tensor("self")
        name = "dim"
        if arguments.has(name) and arguments.literal(name) == ():
            return x.truth()  # here no dimensions mean none
        dimensions, keep = over(arguments, x.rank)
        return x.truth().reduce(op, dimensions, keep=keep)

    return rule


def count_nonzero(arguments: Arguments) -> Expression:
    """How many are not zero."""
    x = arguments.tensor("self").truth().cast(torch.int64)
    return x.sum(over(arguments, x.rank)[0])


def spread(*, root: bool, with_mean: bool) -> Rule:
    """Make the rule of variance or standard deviation."""

    def rule(arguments: Arguments) -> Expression | tuple[Expression, ...]:
        x = arguments.tensor("self").wide()
        dimensions, keep = over(arguments, x.rank)
        given, count = arguments.literal("correction"), x.count(dimensions)
        correction = 1 if given is None else given
        is_told = correction <= 1 or not isinstance(count, Extent)
        arguments.require(is_told, "of sizes that may be below the correction")
        room = max(0, count - correction)
        middle = x.mean(dimensions, keep=True)
        gap = x - middle
        found = (gap * gap).sum(dimensions, keep=keep) / as_divisor(room)
        found = found.apply("sqrt") if root else found
        return (found, middle.reshape(found.shape)) if with_mean else found

    return rule


# Softmax and its kin.


def along(arguments: Arguments, x: Expression) -> tuple[int, ...]:
    """The dimension of softmax; a tensor without dimensions has none."""
    return (arguments.dimension("dim", x.rank),) if x.rank else ()


def softmax(x: Expression, dimensions: tuple[int, ...]) -> Expression:
    """exp(x) divided by its sum, from the largest down."""
    grown = (x - x.reduce("max", dimensions, keep=True)).apply("exp")
    return grown / grown.sum(dimensions, keep=True)


def softmax_rule(arguments: Arguments) -> Expression:
    """Softmax; of nothing it is nothing."""
    x = arguments.tensor("self").wide()
    return softmax(x, along(arguments, x)) if x.kind.size else x


def safe_softmax(arguments: Arguments) -> Expression:
    """Softmax that is 0 where all are minus infinity."""
    x = arguments.tensor("self").cast(arguments.result().dtype).wide()
    dimensions = along(arguments, x)
    masked = x.apply("eq", -math.inf).reduce("all", dimensions, keep=True)
    return masked.choose(0, softmax(x, dimensions))


def log_softmax(arguments: Arguments) -> Expression:
    """The logarithm of softmax; of nothing it is nothing."""
    x = arguments.tensor("self").wide()
    if x.kind.size == 0:
        return x
    dimensions = along(arguments, x)
    shifted = x - x.reduce("max", dimensions, keep=True)
    return shifted - shifted.apply("exp").sum(dimensions, keep=True).apply("log")


def softmax_gradient(arguments: Arguments) -> Expression:
    """The gradient of softmax."""
    gradient, y = (entry.wide() for entry in arguments.tensors("grad_output", "output"))
    return y * (gradient - (gradient * y).sum(along(arguments, y), keep=True))


def log_softmax_gradient(arguments: Arguments) -> Expression:
    """The gradient of log_softmax."""
    gradient, y = (entry.wide() for entry in arguments.tensors("grad_output", "output"))
    return gradient - y.apply("exp") * gradient.sum(along(arguments, y), keep=True)


def log_sum_exp(arguments: Arguments) -> Expression:
    """log(sum(exp(x)))."""
    [x] = arguments.promoted("self", floating=True)
    dimensions, keep = over(arguments, x.rank)
    highest = x.reduce("max", dimensions, keep=True)
    highest = highest.apply("abs").apply("eq", math.inf).choose(0, highest)
    total = (x - highest).apply("exp").sum(dimensions, keep=keep)
    return total.apply("log") + highest.reshape(total.shape)


# Norms.

PRODUCT, DIFFERENCES = 1, 2  # modes of cdist
MOST_BY_DIFFERENCES = 25
NORMS: dict[float, Callable[[Expression, tuple[int, ...], bool], Expression]] = {
    0.0: lambda x, dimensions, keep: x.truth().cast(x.dtype).sum(dimensions, keep=keep),
    1.0: lambda x, dimensions, keep: x.apply("abs").sum(dimensions, keep=keep),
    2.0: lambda x, dimensions, keep: (x * x).sum(dimensions, keep=keep).apply("sqrt"),
    math.inf: lambda x, dimensions, keep: x.apply("abs").reduce("max", dimensions, keep=keep),
    -math.inf: lambda x, dimensions, keep: x.apply("abs").reduce("min", dimensions, keep=keep),
}


def vector_norm(arguments: Arguments) -> Expression:
    """The p-norm over dimensions."""
    return norm(arguments, "ord")


def distance(arguments: Arguments) -> Expression:
    """The p-norm of a difference."""
    x, y = arguments.promoted("self", "other")
    gap, power = x - y, float(arguments.literal("p"))
    arguments.require(power in NORMS and gap.kind.size > 0, "of another norm")
    return NORMS[power](gap, tuple(range(gap.rank)), False)


def pairwise(arguments: Arguments) -> Expression:
    """The distance of every row of a matrix from every row of another: as PyTorch does, large ones by a product."""
    x, y = (entry.wide() for entry in arguments.tensors("x1", "x2"))
    shape = arguments.result().shape
    power = float(arguments.literal("p")) if arguments.has("p") else 2.0
    mode = arguments.literal("compute_mode") if arguments.has("p") else PRODUCT
    arguments.require(power in (1.0, 2.0) and x.kind.size > 0 < y.kind.size, "of another norm, or of nothing")
    by_product = mode == PRODUCT or (mode != DIFFERENCES and max(shape[-2:]) > MOST_BY_DIFFERENCES)
    if power == 2.0 and by_product:
        squares = [(entry * entry).sum((entry.rank - 1,), keep=True) for entry in (x, y)]
        left = (x * -2.0).expand((*shape[:-2], *x.shape[-2:]))
        right = y.transpose(-1, -2).expand((*shape[:-2], y.shape[-1], y.shape[-2]))
        found = left.matmul(right) + squares[0] + squares[1].transpose(-1, -2)
        return found.apply("maximum", 0).apply("sqrt")
    gap = x.insert(x.rank - 1) - y.insert(y.rank - 2)
    return NORMS[power](gap, (gap.rank - 1,), False)


def norm(arguments: Arguments, name: str = "p") -> Expression:
    """The p-norm over dimensions; 2 if p is not given."""
    x = arguments.tensor("self").cast(arguments.result().dtype).wide()
    arguments.require(x.dtype.is_floating_point, "of integers")
    dimensions, keep = over(arguments, x.rank)
    given = arguments.literal(name)
    power = 2.0 if given is None else float(given)
    if power in NORMS:
        return NORMS[power](x, dimensions, keep)
    total = x.apply("abs").apply("pow", power).sum(dimensions, keep=keep)
    return total.apply("pow", 1.0 / power)


REDUCTIONS: Rules = {
    "aten.sum.default": accumulated("sum"),
    "aten.sum.dim_IntList": accumulated("sum"),
    "aten.prod.default": accumulated("prod"),
    "aten.prod.dim_int": accumulated("prod"),
    "aten.mean.default": mean,
    "aten.mean.dim": mean,
    "aten.nansum.default": sum_of_numbers,
    "aten.trace.default": trace_of_matrix,
    "aten.dist.default": distance,
    "aten._cdist_forward.default": pairwise,
    "aten._euclidean_dist.default": pairwise,
    "aten.amax.default": extreme("max"),
    "aten.amin.default": extreme("min"),
    "aten.max.default": extreme("max"),
    "aten.min.default": extreme("min"),
    "aten.max.dim": extreme_with_place("max"),
    "aten.min.dim": extreme_with_place("min"),
    "aten.aminmax.default": extremes,
    "aten.argmax.default": position("argmax"),
    "aten.argmin.default": position("argmin"),
    "aten.any.default": question("any"),
    "aten.any.dim": question("any"),
    "aten.any.dims": question("any"),
    "aten.all.default": question("all"),
    "aten._is_all_true.default": question("all"),
    "aten.all.dim": question("all"),
    "aten.all.dims": question("all"),
    "aten.count_nonzero.dim_IntList": count_nonzero,
    "aten.count_nonzero.default": count_nonzero,
    "aten.var.correction": spread(root=False, with_mean=False),
    "aten.std.correction": spread(root=True, with_mean=False),
    "aten.var_mean.correction": spread(root=False, with_mean=True),
    "aten.std_mean.correction": spread(root=True, with_mean=True),
    "aten._softmax.default": softmax_rule,
    "aten._safe_softmax.default": safe_softmax,
    "aten._log_softmax.default": log_softmax,
    "aten._softmax_backward_data.default": softmax_gradient,
    "aten._log_softmax_backward_data.default": log_softmax_gradient,
    "aten.logsumexp.default": log_sum_exp,
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.norm.Scalar": norm,
    "aten.norm.ScalarOpt_dim": norm,
    "aten.norm.ScalarOpt_dim_dtype": norm,
    "aten.norm.ScalarOpt_dtype": norm,
}

MOST_SORTED = 17
MOST_OF_ONE = 64


def is_selected(extent: int, count: int) -> bool:
    """Whether PyTorch finds the first `count` of so many by nth_element, and sorts them by insertion."""
    return 0 < count <= MOST_SORTED and count <= extent < count * MOST_OF_ONE


def top(arguments: Arguments) -> tuple[Expression, ...]:
    """The largest or smallest along a dimension, and where they are."""
    x = arguments.tensor("self")
    if x.rank == 0:
        return x, arguments.full(0, torch.int64)
    dimension, count = arguments.dimension("dim", x.rank), arguments.literal("k")
    arguments.require(x.dtype is not torch.bool and x.kind.size > 0, "of truth values or nothing")
    extent = x.shape[dimension]
    # Which of equal numbers are taken follows from how many there are; those that fill up a row could be taken, too.
    arguments.require(not isinstance(extent, Extent), "of a size that varies")
    arguments.require(is_selected(extent, count), "that PyTorch finds in another way")
    moved = x.transpose(dimension, x.rank - 1)
    keeps = {"largest": bool(arguments.literal("largest")), "sorted": bool(arguments.literal("sorted"))}
    places = moved.build("top_places", count=count, **keeps)
    values = moved.build("gather", places, dimension=x.rank - 1)
    return values.transpose(dimension, x.rank - 1), places.transpose(dimension, x.rank - 1)


SORTING: Rules = {"aten.topk.default": top}
