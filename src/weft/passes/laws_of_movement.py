"""Laws of ops that move elements without computing: bits are copied, so all that counts is which element goes where."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.ir.graph import Value
from weft.ir.ops import build
from weft.passes.law import Law, operand_if_alike, rebuilt, tensor_type


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


LAWS = (
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
