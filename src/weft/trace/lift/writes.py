"""Put new elements of a view into the whole tensor, step by step back along the view's path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import mul
from typing import Any, NamedTuple

import torch

from weft.errors import UsageError
from weft.ir import library
from weft.ir.extents import Extent, FixedSizeError, Polynomial, today
from weft.ir.library import HOLE, Call, Operand, Path, ViewStep, map_arguments
from weft.ir.types import Type, contiguous
from weft.trace.lift.arguments import Arguments, Rules
from weft.trace.lift.expression import Expression, positions

Inverse = Callable[[Arguments, Expression, Expression, int], Expression]
"""Gives, from a step's arguments, the tensor before the step, and the new elements of the view, the new tensor.

The last argument says which of several views was written.
"""


def view_at(tensor: Expression, path: Path, rules: Rules) -> Expression:
    """The elements of the view at a path."""
    for step in path:
        tensor = _taken(tensor, step, rules)
    return tensor


def put_back(tensor: Expression, path: Path, new: Expression, rules: Rules) -> Expression:
    """The tensor with new elements in the view at a path."""
    if not path:
        return new
    step, *rest = path
    if step.target not in INVERSES:
        raise UsageError(f"no rule writes through {step.target}")
    inner = put_back(_taken(tensor, step, rules), tuple(rest), new, rules)
    return INVERSES[step.target](_bound(tensor, step), tensor, inner, step.item or 0)


def _taken(tensor: Expression, step: ViewStep, rules: Rules) -> Expression:
    if step.target not in rules:
        raise UsageError(f"no rule for the view {step.target}")
    result = rules[step.target](_bound(tensor, step))
    found = result if isinstance(result, Expression) else result[step.item or 0]
    assert found is not None
    return found


def _bound(tensor: Expression, step: ViewStep) -> Arguments:
    call = Call(step.target, step.arguments, step.keywords)
    return Arguments(call, (tensor,), _step_types(tensor, step), tensor.place)


def _step_types(tensor: Expression, step: ViewStep) -> tuple[Type, ...]:
    """The types of a view operator's results, asked from the operator itself on a tensor without elements."""
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Operand):
            raise UsageError("it writes into a part whose size only a run knows")
        return empty if leaf == HOLE else leaf

    arguments, keywords = map_arguments(step.arguments, fill), dict(map_arguments(step.keywords, fill))
    result = library.resolve(step.target)(*arguments, **keywords)
    parts = result if isinstance(result, list | tuple) else [result]
    if step.target in ("aten.view.default", "aten._unsafe_view.default"):
        return (contiguous(tensor.dtype, _asked_shape(tensor.shape, step.arguments[1])),)
    return tuple(contiguous(part.dtype, tuple(part.shape)) for part in parts)


def _asked_shape(shape: tuple[int, ...], asked: Any) -> tuple[int, ...]:
    """The shape of a view that is asked for by its sizes, of which one may be -1: as sizes that vary, where they do."""
    count = reduce(mul, shape, 1)
    for size in asked:
        if size != -1:
            count = _quotient(count, size)
    return tuple(count if size == -1 else size for size in asked)


def _quotient(count: int, size: int) -> int:
    if today(size) == 0:
        return 0  # as PyTorch has found, which raises where -1 could be anything
    if not isinstance(size, Extent):
        return count // size
    whole = count.expression if isinstance(count, Extent) else Polynomial.constant(count)
    found = whole.over_size(size.expression)
    if found is None:
        raise FixedSizeError(f"{whole} elements are cut into rows of {size}")
    number = today(count) // today(size)
    return number if found.number is not None else Extent(number, found)


def _same_order(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    del arguments, item
    return new.reshape(before.shape)


def _transposed(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    del item
    first, second = (arguments.dimension(name, before.rank) for name in ("dim0", "dim1"))
    return new.transpose(first, second)


def _turned(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    del arguments, item
    return new.transpose(0, 1) if before.rank == 2 else new


def _permuted(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    del item
    order = [dimension % before.rank for dimension in arguments.literal("dims")]
    return new.permute([order.index(dimension) for dimension in range(before.rank)])


def _one_position(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    del item
    dimension = arguments.dimension("dim", before.rank)
    index = arguments.literal("index") % before.shape[dimension]
    return region(before, dimension, range(index, index + 1), new.insert(dimension))


def _part(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    del item
    dimension = arguments.dimension("dim", before.rank)
    return region(before, dimension, slice_range(arguments, before, dimension), new)


def _one_of_split(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    dimension = arguments.dimension("dim", before.rank)
    start = sum(arguments.result(index).shape[dimension] for index in range(item))
    return region(before, dimension, range(start, start + new.shape[dimension]), new)


def _one_of_all(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    dimension = arguments.dimension("dim", before.rank)
    return region(before, dimension, range(item, item + 1), new.insert(dimension))


class Positions(NamedTuple):
    """Every step-th position from start to before stop."""

    start: int
    stop: int
    step: int


def slice_range(arguments: Arguments, before: Expression, dimension: int) -> Positions:
    """The positions that aten.slice takes."""
    size = before.shape[dimension]

    def within(name: str, default: int) -> int:
        given = arguments.literal(name)
        place = default if given is None else given
        return min(max(place + size if place < 0 else place, 0), size)

    start, stop = within("start", 0), within("end", size)
    return Positions(start, max(start, stop), arguments.literal("step"))


def region(before: Expression, dimension: int, where: range | Positions, new: Expression) -> Expression:
    """A tensor with the elements at some positions of a dimension replaced."""
    if where.step == 1:
        extent = before.shape[dimension]
        parts = [before.part(dimension, 0, where.start), new, before.part(dimension, where.stop, extent)]
        first, *others = (part for part in parts if part.shape[dimension])
        return first.join(others, dimension)
    index = positions(new.shape, dimension, before.place) * where.step + where.start
    return before.build("scatter", index, new, dimension=dimension)


def diagonal_places(x: Expression, first: int, second: int, offset: int) -> tuple[Expression, range]:
    """The tensor with two dimensions made one, the last; and where in that a diagonal lies."""
    others = [dimension for dimension in range(x.rank) if dimension not in (first, second)]
    rows, columns = x.shape[first], x.shape[second]
    flat = x.permute([*others, first, second]).reshape((*(x.shape[at] for at in others), rows * columns))
    start = offset if offset >= 0 else -offset * columns
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return flat, range(start, start + (length - 1) * (columns + 1) + 1, columns + 1) if length else range(0)


def diagonal_put(arguments: Arguments, before: Expression, new: Expression) -> Expression:
    """The tensor with a diagonal replaced."""
    first, second = (arguments.literal(name) % before.rank for name in ("dim1", "dim2"))
    flat, where = diagonal_places(before, first, second, arguments.literal("offset"))
    if not where:
        return before
    order = [dimension for dimension in range(before.rank) if dimension not in (first, second)] + [first, second]
    found = region(flat, flat.rank - 1, where, new).reshape(tuple(before.shape[at] for at in order))
    return found.permute([order.index(dimension) for dimension in range(before.rank)])


def _diagonal(arguments: Arguments, before: Expression, new: Expression, item: int) -> Expression:
    del item
    return diagonal_put(arguments, before, new)


INVERSES: Mapping[str, Inverse] = {
    "aten.view.default": _same_order,
    "aten._unsafe_view.default": _same_order,
    "aten.unsqueeze.default": _same_order,
    "aten.squeeze.default": _same_order,
    "aten.squeeze.dim": _same_order,
    "aten.squeeze.dims": _same_order,
    "aten.alias.default": _same_order,
    "aten.as_strided.default": _same_order,  # only where it reads a tensor row by row: see weft.ir.sharing
    "aten.detach.default": _same_order,
    "aten.t.default": _turned,
    "aten.transpose.int": _transposed,
    "aten.permute.default": _permuted,
    "aten.select.int": _one_position,
    "aten.slice.Tensor": _part,
    "aten.diagonal.default": _diagonal,
    "aten.unbind.int": _one_of_all,
    "aten.split.Tensor": _one_of_split,
    "aten.split_with_sizes.default": _one_of_split,
    "aten.unsafe_split.Tensor": _one_of_split,
    "aten.unsafe_split_with_sizes.default": _one_of_split,
}
