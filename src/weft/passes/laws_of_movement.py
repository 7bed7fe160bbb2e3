"""Simplify ops that move elements: bits are copied, so all that counts is which element goes where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from weft.ir.graph import Value
from weft.ir.ops import build
from weft.ir.types import CPU, contiguous
from weft.passes.laws_of_arithmetic import FLOATS, is_positive_zero
from weft.passes.rewrite import Law, operand_if_alike, rebuilt, tensor_type, uniform


def nothing_moves(value: Value) -> Value | None:
    """The operand, where shape and strides stay: then reshape and expand leave each element in its place."""
    return operand_if_alike(value, value.operands[0])


def reshape_of_reshape(value: Value) -> Value | None:
    """One reshape for two."""
    inner = value.operands[0]
    return (
        rebuilt(value, "reshape", inner.operands[0], shape=value.attributes["shape"]) if inner.op == "reshape" else None
    )


def split_after_permute(value: Value) -> Value | None:
    """One reshape for two, where the second only splits dimensions of a permuted one: they are split in the first."""
    turned = value.operands[0]
    if turned.op != "permute" or turned.operands[0].op != "reshape":
        return None
    parts = split_of(tensor_type(turned).shape, tensor_type(value).shape)
    if parts is None:
        return None
    inner, order = turned.operands[0], turned.attributes["order"]
    shape: list[int] = []
    places: dict[int, range] = {}
    for dimension, place in enumerate(sorted(range(len(order)), key=lambda place: order[place])):
        places[dimension] = range(len(shape), len(shape) + len(parts[place]))
        shape.extend(parts[place])
    split = build("reshape", inner.operands[0], place=inner.place, shape=tuple(shape))
    return rebuilt(value, "permute", split, order=tuple(i for dimension in order for i in places[dimension]))


def split_of(shape: Sequence[int], wanted: Sequence[int]) -> list[tuple[int, ...]] | None:
    """The sizes that each dimension is split into, if a shape becomes the wanted one by that alone."""
    if not prod(shape):
        return None
    parts: list[tuple[int, ...]] = []
    left = list(wanted)
    for extent in shape:
        part: list[int] = []
        while prod(part) < extent and left:
            part.append(left.pop(0))
        if prod(part) != extent:
            return None
        parts.append(tuple(part))
    if any(extent != 1 for extent in left) or not parts:
        return None
    parts[-1] = (*parts[-1], *left)
    return parts


def expand_of_expand(value: Value) -> Value | None:
    """One expand for two."""
    inner = value.operands[0]
    return (
        rebuilt(value, "expand", inner.operands[0], shape=value.attributes["shape"]) if inner.op == "expand" else None
    )


def permute_of_permute(value: Value) -> Value | None:
    """One permute, with the orders composed, for two."""
    inner = value.operands[0]
    if inner.op != "permute":
        return None
    order = tuple(inner.attributes["order"][dimension] for dimension in value.attributes["order"])
    return rebuilt(value, "permute", inner.operands[0], order=order)


def permute_in_order(value: Value) -> Value | None:
    """The operand, where every dimension of more than one element keeps its place among the others."""
    shape = tensor_type(value.operands[0]).shape
    moved = [dimension for dimension in value.attributes["order"] if shape[dimension] != 1]
    return operand_if_alike(value, value.operands[0]) if moved == sorted(moved) else None


def slice_of_slice(value: Value) -> Value | None:
    """One slice, with starts added and steps multiplied, for two."""
    inner = value.operands[0]
    if inner.op != "slice":
        return None
    start, stop, step = [], [], []
    for dimension, size in enumerate(tensor_type(value).shape):
        first, stride = inner.attributes["start"][dimension], inner.attributes["step"][dimension]
        first += value.attributes["start"][dimension] * stride if size else 0
        stride *= value.attributes["step"][dimension]
        start.append(first)
        stop.append(first + (size - 1) * stride + 1 if size else first)
        step.append(stride)
    return rebuilt(value, "slice", inner.operands[0], start=tuple(start), stop=tuple(stop), step=tuple(step))


def reverse_of_nothing(value: Value) -> Value | None:
    """The operand, where only dimensions of at most one element are reversed."""
    shape = tensor_type(value).shape
    still = all(shape[dimension] <= 1 for dimension in value.attributes["dimensions"])
    return operand_if_alike(value, value.operands[0]) if still else None


def reverse_of_reverse(value: Value) -> Value | None:
    """One reverse, of the dimensions that only one of both reverses, for two."""
    inner = value.operands[0]
    if inner.op != "reverse":
        return None
    once = set(value.attributes["dimensions"]) ^ set(inner.attributes["dimensions"])
    return rebuilt(value, "reverse", inner.operands[0], dimensions=tuple(sorted(once)))


def concat_of_one(value: Value) -> Value | None:
    """The operand, where there is only one."""
    return operand_if_alike(value, value.operands[0]) if len(value.operands) == 1 else None


MOVEMENT = (
    Law("same shape", ("reshape", "expand"), nothing_moves, "as many elements in the same shape are in the same order"),
    Law("whole slice", ("slice",), nothing_moves, "a part with the size of the whole is the whole"),
    Law("pad by nothing", ("pad",), nothing_moves, "no size grows, so no element is added"),
    Law("reshape of reshape", ("reshape",), reshape_of_reshape, "both count the elements row by row"),
    Law("split after permute", ("reshape",), split_after_permute, "a dimension may be split before it is moved"),
    Law("expand of expand", ("expand",), expand_of_expand, "a repetition of a repetition is a repetition"),
    Law("permute of permute", ("permute",), permute_of_permute, "orders compose"),
    Law("permute in order", ("permute",), permute_in_order, "a dimension of one element may stand anywhere"),
    Law("slice of slice", ("slice",), slice_of_slice, "every step-th of every step-th is every product-th"),
    Law("reverse of nothing", ("reverse",), reverse_of_nothing, "one element is its own reverse"),
    Law("reverse of reverse", ("reverse",), reverse_of_reverse, "a dimension reversed twice is as before"),
    Law("concat of one", ("concat",), concat_of_one, "nothing is added to it"),
)

# Laws of sums of padded parts, as the gradients of slices of one tensor are added up: the parts lie side by side.


@dataclass(frozen=True, slots=True)
class PaddedPart:
    """A value inside zeros along one dimension, from an element on."""

    value: Value
    dimension: int
    start: int

    @property
    def stop(self) -> int:
        """The first element behind it."""
        return self.start + tensor_type(self.value).shape[self.dimension]


def sum_of_parts(value: Value) -> Value | None:
    """One padded value for the sum of two, where one part begins at the end of the other."""
    kind = tensor_type(value)
    if kind.dtype not in FLOATS or kind.device != CPU:
        return None
    parts = [part for part in map(_part, value.operands) if part is not None]
    if len(parts) != 2:
        return None
    first, second = sorted(parts, key=lambda part: part.start)
    if first.dimension != second.dimension or first.stop != second.start:
        return None
    joined = build("concat", *_added(first), *_added(second), place=value.place, dimension=first.dimension)
    zeros = (0,) * kind.rank
    high = kind.shape[first.dimension] - second.stop
    return rebuilt(
        value,
        "pad",
        joined,
        low=_with(zeros, first.dimension, first.start),
        high=_with(zeros, first.dimension, high),
        value=0.0,
    )


def _part(value: Value) -> PaddedPart | None:
    if value.op != "pad" or not is_positive_zero(value.attributes["value"]):
        return None
    sides = zip(value.attributes["low"], value.attributes["high"], strict=True)
    padded = [dimension for dimension, side in enumerate(sides) if any(side)]
    if len(padded) != 1 or not tensor_type(value).size:
        return None
    return PaddedPart(value.operands[0], padded[0], value.attributes["low"][padded[0]])


def _added(part: PaddedPart) -> list[Value]:
    """What is joined: with the zero added that lay over it, which makes 0 of -0."""
    value = part.value
    if value.op == "concat" and value.attributes["dimension"] == part.dimension and all(map(_is_added, value.operands)):
        return list(value.operands)
    kind = tensor_type(value)
    zero = build(
        "constant", type=contiguous(kind.dtype, ()), place=value.place, tensor=torch.zeros((), dtype=kind.dtype)
    )
    return [build("add", value, build("expand", zero, place=value.place, shape=kind.shape), place=value.place)]


def _is_added(value: Value) -> bool:
    number = uniform(value.operands[1]) if value.op == "add" else None
    return number is not None and is_positive_zero(number)


def _with(zeros: tuple[int, ...], dimension: int, size: int) -> tuple[int, ...]:
    return (*zeros[:dimension], size, *zeros[dimension + 1 :])


JOINING = (Law("sum of parts", ("add",), sum_of_parts, "beside a part there are zeros, and x + 0 is x, or 0 for -0"),)

# Laws of products with matrices that repeat, as a decoder's few heads of keys and values repeat for groups of queries.
# A repetition is a matter of strides until a reshape merges it with another dimension: then each matrix would be
# copied as often as it repeats.

# With more rows a copy is small beside the product.
MOST_ROWS = 8


def product_of_repeated(value: Value) -> Value | None:
    """A product in more dimensions, where its right operand is repeated and reshaped, for few rows."""
    left, right = value.operands
    *batch, rows, columns = tensor_type(value).shape
    turned = right.op == "permute"
    if turned:
        *leading, last, behind = right.attributes["order"]
        if [*leading, behind, last] != list(range(len(batch) + 2)):
            return None
        right = right.operands[0]
    repeated = right.operands[0] if right.op == "reshape" else right
    if rows > MOST_ROWS or right is repeated or repeated.op != "expand":
        return None
    shape = tensor_type(repeated).shape
    parts = split_of(tensor_type(right).shape, shape)
    if parts is None or len(shape) <= len(batch) + 2 or any(len(part) != 1 for part in parts[-2:]):
        return None
    split = shape[:-2]
    order = (*range(len(split)), len(split) + 1, len(split))
    many = build("permute", repeated, place=right.place, order=order) if turned else repeated
    product = build("matmul", _reshaped(left, (*split, rows, tensor_type(left).shape[-1])), many, place=value.place)
    return rebuilt(value, "reshape", product, shape=(*batch, rows, columns))


def _reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """A value in another shape, without a reshape that another one follows."""
    while value.op == "reshape" and tensor_type(value).shape != shape:
        value = value.operands[0]
    return value if tensor_type(value).shape == shape else build("reshape", value, place=value.place, shape=shape)


REPETITION = (
    Law(
        "product of repeated",
        ("matmul",),
        product_of_repeated,
        "each matrix of the product is the same, wherever it stands among the others",
    ),
)

LAWS: tuple[Law, ...] = (*MOVEMENT, *JOINING, *REPETITION)
