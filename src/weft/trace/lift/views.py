"""Lift operators that move elements, or make tensors from nothing."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from weft.errors import UsageError
from weft.ir.extents import Extent
from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.expression import Expression, Term, positions, table
from weft.trace.lift.writes import diagonal_places, region, slice_range

MOST_TABLE_ELEMENTS = 1 << 16
FLOATS = (torch.float32, torch.float64)


def same(arguments: Arguments) -> Expression:
    """The tensor itself."""
    return arguments.tensor("self")


def reshaped(arguments: Arguments) -> Expression:
    """The same elements, row by row, in the declared shape."""
    x, kind = arguments.tensor("self"), arguments.result()
    arguments.require(kind.dtype is x.dtype, "reinterprets elements")
    return x.reshape(kind.shape)


def expanded(arguments: Arguments) -> Expression:
    """Dimensions repeated."""
    return arguments.tensor("self").expand(arguments.result().shape)


def permuted(arguments: Arguments) -> Expression:
    """Dimensions in another order."""
    x = arguments.tensor("self")
    return x.permute([dimension % x.rank for dimension in arguments.literal("dims")])


def transposed(arguments: Arguments) -> Expression:
    """Two dimensions exchanged."""
    x = arguments.tensor("self")
    return x.transpose(arguments.literal("dim0"), arguments.literal("dim1")) if x.rank else x


def turned(arguments: Arguments) -> Expression:
    """A matrix with rows and columns exchanged."""
    x = arguments.tensor("self")
    return x.transpose(0, 1) if x.rank == 2 else x


def selected(arguments: Arguments) -> Expression:
    """One position of a dimension."""
    x = arguments.tensor("self")
    dimension = arguments.dimension("dim", x.rank)
    return x.pick(dimension, arguments.literal("index") % x.shape[dimension])


def sliced(arguments: Arguments) -> Expression:
    """Every step-th position of a dimension."""
    x = arguments.tensor("self")
    dimension = arguments.dimension("dim", x.rank)
    where = slice_range(arguments, x, dimension)
    return x.part(dimension, where.start, where.stop, where.step)


def split(arguments: Arguments) -> tuple[Expression, ...]:
    """Neighbouring parts of a dimension, as long as the declared results."""
    x = arguments.tensor("self")
    dimension = arguments.dimension("dim", x.rank)
    bounds = [0]
    for index in range(len(arguments.declared)):
        bounds.append(bounds[-1] + arguments.result(index).shape[dimension])
    return tuple(x.part(dimension, start, stop) for start, stop in pairwise(bounds))


def unbind(arguments: Arguments) -> tuple[Expression, ...]:
    """Every position of a dimension."""
    x = arguments.tensor("self")
    dimension = arguments.dimension("dim", x.rank)
    return tuple(x.pick(dimension, index) for index in range(x.shape[dimension]))


def joined(arguments: Arguments) -> Expression:
    """Tensors one after the other; those of shape [0] do not count."""
    kind = arguments.result()
    parts = [part for part in arguments.tensor_list("tensors") if part.shape != (0,) or kind.rank == 1]
    arguments.require(bool(parts), "of nothing")
    first, *others = (part.cast(kind.dtype) for part in parts)
    return first.join(others, arguments.dimension("dim", kind.rank))


def stacked(arguments: Arguments) -> Expression:
    """Tensors side by side in a new dimension."""
    kind = arguments.result()
    dimension = arguments.dimension("dim", kind.rank)
    first, *others = (part.cast(kind.dtype).insert(dimension) for part in arguments.tensor_list("tensors"))
    return first.join(others, dimension)


def flipped(arguments: Arguments) -> Expression:
    """Dimensions run through backwards."""
    x = arguments.tensor("self")
    dimensions = tuple(sorted(dimension % x.rank for dimension in arguments.literal("dims"))) if x.rank else ()
    return x.build("reverse", dimensions=dimensions) if dimensions else x


def rolled(arguments: Arguments) -> Expression:
    """Elements moved along dimensions, those that fall off put in again at the other end."""
    x, kind = arguments.tensor("self"), arguments.result()
    shifts, dimensions = (_listed(arguments, name) for name in ("shifts", "dims"))
    if not dimensions:
        x, dimensions = x.reshape((x.count(range(x.rank)),)), (0,)
    for shift, dimension in zip(shifts, dimensions, strict=True):
        place = dimension % max(x.rank, 1)
        extent = x.shape[place] if x.rank else 0
        if isinstance(extent, Extent) and abs(shift) > 1:
            raise UsageError("elements are moved by more than there may be")
        if extent and shift % extent:
            cut = extent - shift % extent
            x = x.part(place, cut, extent).join([x.part(place, 0, cut)], place)
    return x.reshape(kind.shape)


def _listed(arguments: Arguments, name: str) -> tuple[int, ...]:
    found = arguments.literal(name)
    return found if isinstance(found, tuple) else (found,)


def repeated(arguments: Arguments) -> Expression:
    """The whole tensor several times along each dimension."""
    x, kind = arguments.tensor("self"), arguments.result()
    times = arguments.literal("repeats")
    shape = (1,) * (len(times) - x.rank) + x.shape
    apart = tuple(extent for size in shape for extent in (1, size))
    wide = tuple(extent for count, size in zip(times, shape, strict=True) for extent in (count, size))
    return x.reshape(apart).expand(wide).reshape(kind.shape)


def padded(arguments: Arguments) -> Expression:
    """A number around the elements; a negative count takes elements away."""
    x = arguments.tensor("self")
    counts = arguments.literal("pad")
    arguments.require(not any(isinstance(count, Extent) for count in counts), "pads by a size that varies")
    low, high = [0] * x.rank, [0] * x.rank
    for index in range(len(counts) // 2):
        low[x.rank - 1 - index], high[x.rank - 1 - index] = counts[2 * index : 2 * index + 2]
    for dimension in range(x.rank):
        extent = x.shape[dimension]
        x = x.part(dimension, max(0, -low[dimension]), extent - max(0, -high[dimension]))
    low, high = ([max(0, count) for count in counts] for counts in (low, high))
    if not any(low) and not any(high):
        return x
    return x.build("pad", low=tuple(low), high=tuple(high), value=arguments.literal("value"))


def windows(arguments: Arguments) -> Expression:
    """Windows along a dimension, as a last dimension of their own."""
    x, kind = arguments.tensor("self"), arguments.result()
    if x.rank == 0:
        return x.reshape(kind.shape)
    dimension = arguments.dimension("dimension", x.rank)
    count, size = kind.shape[dimension], arguments.literal("size")
    starts = torch.arange(count).unsqueeze(1) * arguments.literal("step")
    places = (starts + torch.arange(size)).reshape(-1)
    taken = x.build("take", table(places, x.place), dimension=dimension)
    apart = taken.reshape((*x.shape[:dimension], count, size, *x.shape[dimension + 1 :]))
    return apart.permute([at for at in range(x.rank + 1) if at != dimension + 1] + [dimension + 1])


def diagonal(arguments: Arguments) -> Expression:
    """Elements whose positions in two dimensions differ by an offset."""
    x, kind = arguments.tensor("self"), arguments.result()
    first, second = (arguments.dimension(name, x.rank) for name in ("dim1", "dim2"))
    flat, where = diagonal_places(x, first, second, arguments.literal("offset"))
    if not where:
        return arguments.full(0, kind.dtype, kind.shape)
    return flat.part(flat.rank - 1, where.start, where.stop, where.step)


def triangle(keep_lower: bool) -> Rule:
    """Make the rule of tril or triu: the elements on one side of a diagonal, the others 0."""

    def rule(arguments: Arguments) -> Expression:
        x = arguments.tensor("self")
        rows, columns = (positions(x.shape[-2:], dimension, x.place) for dimension in (0, 1))
        gap = columns - rows
        inside = gap.apply("le" if keep_lower else "ge", arguments.literal("diagonal"))
        return inside.choose(x, 0)

    return rule


# Gradients of views.


def select_gradient(arguments: Arguments) -> Expression:
    """The gradient of one position, 0 elsewhere."""
    gradient, kind = arguments.tensor("grad_output"), arguments.result()
    dimension = arguments.dimension("dim", kind.rank)
    index = arguments.literal("index") % kind.shape[dimension]
    return _surrounded(gradient.insert(dimension), dimension, index, kind.shape[dimension])


def _surrounded(x: Expression, dimension: int, start: int, extent: int) -> Expression:
    low, high = [0] * x.rank, [0] * x.rank
    low[dimension], high[dimension] = start, extent - start - x.shape[dimension]
    return x.build("pad", low=tuple(low), high=tuple(high), value=0)


def slice_gradient(arguments: Arguments) -> Expression:
    """The gradient of a slice, 0 elsewhere."""
    gradient, kind = arguments.tensor("grad_output"), arguments.result()
    dimension = arguments.dimension("dim", kind.rank)
    zeros = arguments.full(0, gradient.dtype, kind.shape)
    where = slice_range(arguments, zeros, dimension)
    if where.step == 1:
        return _surrounded(gradient, dimension, where.start, kind.shape[dimension])
    return region(zeros, dimension, where, gradient)


def window_gradient(arguments: Arguments) -> Expression:
    """The gradient of windows: each element's sum over the windows it lies in."""
    gradient, kind = arguments.tensor("grad_in"), arguments.result()
    arguments.require(kind.rank > 0, "of a tensor without dimensions")
    dimension = arguments.dimension("dim", kind.rank)
    count, size = gradient.shape[dimension], arguments.literal("size")
    order = list(range(gradient.rank - 1))
    order.insert(dimension + 1, gradient.rank - 1)
    shape = (*kind.shape[:dimension], count * size, *kind.shape[dimension + 1 :])
    flat = gradient.permute(order).reshape(shape)
    starts = torch.arange(count).unsqueeze(1) * arguments.literal("step")
    places = table((starts + torch.arange(size)).reshape(-1), gradient.place)
    column = places.reshape((count * size,) + (1,) * (kind.rank - dimension - 1)).expand(shape)
    zeros = arguments.full(0, gradient.dtype, kind.shape)
    return zeros.build("scatter_add", column, flat, dimension=dimension)


# Tensors from nothing.


def filled(number: float) -> Rule:
    """Make the rule of an operator that gives one number everywhere."""

    def rule(arguments: Arguments) -> Expression:
        kind = arguments.result()
        return arguments.full(number, kind.dtype, kind.shape)

    return rule


def uninitialised(arguments: Arguments) -> Expression:
    """Memory that holds whatever it held may as well hold zeros: then nothing but kernels is left to run.

    Deterministic PyTorch fills it with what stands out.
    """
    kind = arguments.result()
    number: float = 0
    fills = getattr(torch.utils.deterministic, "fill_uninitialized_memory")  # noqa: B009
    if fills and torch.are_deterministic_algorithms_enabled():
        is_float = kind.dtype.is_floating_point
        number = math.nan if is_float else 1 if kind.dtype is torch.bool else torch.iinfo(kind.dtype).max
    return arguments.full(number, kind.dtype, kind.shape)


def filled_with(name: str) -> Rule:
    """Make the rule of an operator that gives an argument everywhere."""

    def rule(arguments: Arguments) -> Expression:
        kind = arguments.result()
        found: Term = arguments.number(name, kind.dtype)
        return found if isinstance(found, Expression) else arguments.full(found, kind.dtype, kind.shape)

    return rule


def counted(arguments: Arguments) -> Expression:
    """Numbers from a start in steps."""
    kind = arguments.result()
    start, step = (arguments.literal(name) if arguments.has(name) else 1 for name in ("start", "step"))
    start = start if arguments.has("start") else 0
    if all(isinstance(number, int) for number in (start, step)) and not kind.dtype.is_floating_point:
        found = positions(kind.shape, 0, arguments.place, kind.dtype)
        found = found if step == 1 else found * step
        return found if start == 0 else found + start
    arguments.require(kind.dtype in FLOATS and kind.size <= MOST_TABLE_ELEMENTS, "of many elements")
    return table(torch.arange(start, arguments.literal("end"), step, dtype=kind.dtype), arguments.place)


def identity_matrix(arguments: Arguments) -> Expression:
    """1 on the diagonal."""
    kind = arguments.result()
    rows, columns = (positions(kind.shape, dimension, arguments.place) for dimension in (0, 1))
    return rows.apply("eq", columns)


VIEWS: Rules = {
    **{
        f"aten.{name}": reshaped
        for name in (
            *("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.default"),
            *("squeeze.dim", "squeeze.dims", "_reshape_alias.default", "view_copy.default", "unsqueeze_copy.default"),
            "as_strided.default",  # only where it reads a tensor row by row: see weft.ir.sharing
            *("squeeze_copy.default", "squeeze_copy.dim", "squeeze_copy.dims", "flatten.using_ints"),
        )
    },
    **{f"aten.{name}.default": same for name in ("alias", "detach", "lift", "lift_fresh", "alias_copy", "detach_copy")},
    "aten.expand.default": expanded,
    "aten.expand_copy.default": expanded,
    "aten.permute.default": permuted,
    "aten.permute_copy.default": permuted,
    "aten.transpose.int": transposed,
    "aten.transpose_copy.int": transposed,
    "aten.t.default": turned,
    "aten.t_copy.default": turned,
    "aten.select.int": selected,
    "aten.select_copy.int": selected,
    "aten.slice.Tensor": sliced,
    "aten.slice_copy.Tensor": sliced,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split,
    "aten.unsafe_split.Tensor": split,
    "aten.unsafe_split_with_sizes.default": split,
    "aten.split_copy.Tensor": split,
    "aten.split_with_sizes_copy.default": split,
    "aten.unbind.int": unbind,
    "aten.unbind_copy.int": unbind,
    "aten.cat.default": joined,
    "aten.stack.default": stacked,
    "aten.flip.default": flipped,
    "aten.roll.default": rolled,
    "aten.repeat.default": repeated,
    "aten.constant_pad_nd.default": padded,
    "aten.unfold.default": windows,
    "aten.unfold_copy.default": windows,
    "aten.diagonal.default": diagonal,
    "aten.diagonal_copy.default": diagonal,
    "aten.tril.default": triangle(keep_lower=True),
    "aten.triu.default": triangle(keep_lower=False),
    "aten.select_backward.default": select_gradient,
    "aten.slice_backward.default": slice_gradient,
    "aten.unfold_backward.default": window_gradient,
    **{f"aten.{name}.default": filled(0) for name in ("zeros", "zeros_like", "new_zeros", "_efficientzerotensor")},
    "aten.empty.memory_format": uninitialised,
    **{
        f"aten.{name}.default": uninitialised
        for name in ("empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
    },
    **{f"aten.{name}.default": filled(1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}.default": filled_with("fill_value") for name in ("full", "full_like", "new_full")},
    "aten.scalar_tensor.default": filled_with("s"),
    "aten.arange.default": counted,
    "aten.arange.start": counted,
    "aten.arange.start_step": counted,
    "aten.eye.default": identity_matrix,
    "aten.eye.m": identity_matrix,
}
