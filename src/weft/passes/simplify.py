"""Apply laws that are exact bit for bit, wherever they apply, until none does.

A NaN stays a NaN; its sign and payload are nobody's promise (PyTorch's own vector and scalar loops differ in them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from weft.ir import library
from weft.ir.graph import Graph, Value
from weft.ir.library import Call, Operand
from weft.ir.ops import build
from weft.ir.sharing import is_negated
from weft.ir.types import CPU, TensorType, contiguous
from weft.passes.rewrite import Apply, Groups, Law, Number, operand_if_alike, rebuild, rebuilt, tensor_type, uniform

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

EXACT_CASTS: dict[torch.dtype, frozenset[torch.dtype]] = {
    torch.bool: frozenset({*INTEGERS, *FLOATS}),
    torch.uint8: frozenset({torch.int16, torch.int32, torch.int64, *FLOATS}),
    torch.int8: frozenset({torch.int16, torch.int32, torch.int64, *FLOATS}),
    torch.int16: frozenset({torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int32: frozenset({torch.int64, torch.float64}),
    torch.float16: frozenset({torch.float32, torch.float64}),
    torch.bfloat16: frozenset({torch.float32, torch.float64}),
    torch.float32: frozenset({torch.float64}),
}
"""For each dtype, those that hold every number of it."""


def is_one(number: Number) -> bool:
    """1, 1.0 or True."""
    return number == 1


def is_positive_zero(number: Number) -> bool:
    """0 or +0.0."""
    return number == 0 and (not isinstance(number, float) or math.copysign(1.0, number) > 0)


def is_nothing_to_add(number: Number) -> bool:
    """0 or -0.0: x + 0.0 would make +0.0 of -0.0."""
    return number == 0 and (not isinstance(number, float) or math.copysign(1.0, number) < 0)


def neutral(position: int, question: Callable[[Number], bool]) -> Apply:
    """Make a rule: if the operand at this position is a neutral number, the other operand is the result."""

    def apply(value: Value) -> Value | None:
        number = uniform(value.operands[position])
        if number is None or not question(number):
            return None
        return operand_if_alike(value, value.operands[1 - position])

    return apply


def undone(value: Value) -> Value | None:
    """The operand of the operand, where both apply the same op."""
    inner = value.operands[0]
    return operand_if_alike(value, inner.operands[0]) if inner.op == value.op else None


def repeated(value: Value) -> Value | None:
    """The operand, where it comes from the same op already."""
    inner = value.operands[0]
    return operand_if_alike(value, inner) if inner.op == value.op else None


def both_operands_the_same(value: Value) -> Value | None:
    """The operand that is given twice."""
    first, second = value.operands
    return operand_if_alike(value, first) if first is second else None


def abs_of_neg(value: Value) -> Value | None:
    """abs(x) for abs(-x)."""
    inner = value.operands[0]
    return rebuilt(value, "abs", inner.operands[0]) if inner.op == "neg" else None


def add_of_neg(value: Value) -> Value | None:
    """Subtract: x - y for x + -y and -y + x."""
    first, second = value.operands
    if second.op == "neg":
        return rebuilt(value, "sub", first, second.operands[0])
    if first.op == "neg":
        return rebuilt(value, "sub", second, first.operands[0])
    return None


def sub_of_neg(value: Value) -> Value | None:
    """Add: x + y for x - -y."""
    first, second = value.operands
    return rebuilt(value, "add", first, second.operands[0]) if second.op == "neg" else None


def select_known(value: Value) -> Value | None:
    """The choice that a known condition makes, or the only choice."""
    condition, chosen, other = value.operands
    if chosen is other:
        return operand_if_alike(value, chosen)
    known = uniform(condition)
    return None if known is None else operand_if_alike(value, chosen if known else other)


def cast_to_the_same(value: Value) -> Value | None:
    """The operand, where it has the dtype already."""
    return operand_if_alike(value, value.operands[0])


def cast_of_cast(value: Value) -> Value | None:
    """One cast for two, where the first lost nothing."""
    inner = value.operands[0]
    if inner.op != "cast":
        return None
    start = inner.operands[0]
    source, middle, target = (tensor_type(one).dtype for one in (start, inner, value))
    if middle is not source and middle not in EXACT_CASTS.get(source, frozenset()):
        return None
    if source is target:
        return operand_if_alike(value, start)
    # A float too large for an integer becomes whatever the conversion at hand makes of it.
    one_kind = middle in INTEGERS or target in FLOATS or target in EXACT_CASTS.get(source, frozenset())
    return rebuilt(value, "cast", start, dtype=target) if one_kind else None


IDEMPOTENT = ("abs", "relu", "floor", "ceil", "trunc", "round", "sign")

ARITHMETIC_LAWS = (
    Law("x * 1", ("mul",), neutral(1, is_one), "every number times one is itself, -0 and infinities too"),
    Law("1 * x", ("mul",), neutral(0, is_one), "as x * 1"),
    Law("x / 1", ("div",), neutral(1, is_one), "every number by one is itself"),
    Law("x ** 1", ("pow",), neutral(1, is_one), "PyTorch's power to one gives back every bit, subnormals too"),
    Law("x - 0", ("sub",), neutral(1, is_positive_zero), "-0 - 0 is -0; not so x - -0, which makes 0 of -0"),
    Law("x + -0", ("add",), neutral(1, is_nothing_to_add), "-0 + -0 is -0; for integers there is one zero"),
    Law("-0 + x", ("add",), neutral(0, is_nothing_to_add), "as x + -0"),
    Law("-(-x)", ("neg",), undone, "negation flips the sign bit; the smallest integer wraps to itself, twice"),
    Law("not not x", ("bitwise_not",), undone, "every bit is flipped twice"),
    Law("not not truth", ("logical_not",), undone, "flipped twice; of a number, the result would have another type"),
    Law("f(f(x))", IDEMPOTENT, repeated, "what f gives, f leaves as it is"),
    Law("abs(-x)", ("abs",), abs_of_neg, "the sign is dropped in any case; the smallest integer wraps both ways"),
    Law("x + -y", ("add",), add_of_neg, "IEEE 754 defines x - y as x + -y; integers wrap alike"),
    Law("x - -y", ("sub",), sub_of_neg, "as x + -y"),
    Law(
        "x and x",
        ("minimum", "maximum", "bitwise_and", "bitwise_or", "logical_and", "logical_or"),
        both_operands_the_same,
        "of two equal numbers either is the result",
    ),
    Law("known choice", ("select",), select_known, "elements are picked, not computed"),
    Law("cast to the same", ("cast",), cast_to_the_same, "no number changes"),
    Law("cast of cast", ("cast",), cast_of_cast, "the dtype in the middle holds every number of the first"),
)


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

MOVEMENT_LAWS: tuple[Law, ...] = (*MOVEMENT, *JOINING, *REPETITION)


SAME_TYPE_SAME_ELEMENTS = frozenset(
    {
        "aten.detach",
        "aten.alias",
        "aten.lift_fresh",
        "aten.view",
        "aten.reshape",
        "aten._unsafe_view",
        "aten._reshape_alias",
    }
    | {"aten.expand", "aten.permute", "aten.transpose", "aten.t", "aten.squeeze", "aten.slice", "aten.contiguous"}
    | {"aten.clone", "aten._to_copy", "aten.lift", "aten.view_copy", "aten.expand_copy", "aten.detach_copy"}
)
"""Operators that change no element: if the type stays, strides included, so does everything else.

Not among them: as_strided, which may start elsewhere with the same sizes and strides, and the lazy conjugate and
negative, which change elements only.
"""

COPIES = frozenset(
    {"aten.clone", "aten._to_copy", "aten.lift", "aten.view_copy", "aten.expand_copy", "aten.detach_copy"}
)


def nothing_changes(value: Value) -> Value | None:
    """The operand, where an operator that changes no element leaves the type as it is."""
    call: Call = value.attributes["call"]
    name = library.packet_name(call.target)
    if name not in SAME_TYPE_SAME_ELEMENTS or len(value.operands) != 1 or call.arguments[:1] != (Operand(0),):
        return None
    if not isinstance(value.type, TensorType) or dict(call.keywords).get("pin_memory"):
        return None
    # A copy of a lazily conjugated or negated tensor is a plain one, and the caller may ask which of both it is.
    if name in COPIES and (value.type.dtype.is_complex or is_negated(value.operands[0])):
        return None
    return operand_if_alike(value, value.operands[0])


def undone_by_itself(value: Value) -> Value | None:
    """The operand of the operand, where the same exchange of dimensions is applied twice."""
    call: Call = value.attributes["call"]
    inner = value.operands[0] if len(value.operands) == 1 else value
    if call.target not in ("aten.t.default", "aten.transpose.int") or inner.attributes.get("call") != call:
        return None
    return operand_if_alike(value, inner.operands[0])


def permute_undone(value: Value) -> Value | None:
    """The operand of the operand, where one permute undoes the other."""
    call: Call = value.attributes["call"]
    inner = value.operands[0] if len(value.operands) == 1 else value
    inner_call = inner.attributes.get("call")
    if call.target != "aten.permute.default" or inner is value or inner_call is None:
        return None
    if inner_call.target != call.target or call.keywords or inner_call.keywords:
        return None
    rank = len(call.arguments[1])
    composed = [inner_call.arguments[1][dimension] % rank for dimension in call.arguments[1]]
    return operand_if_alike(value, inner.operands[0]) if composed == list(range(rank)) else None


OF_LIBRARY = (
    Law("nothing changes", ("library",), nothing_changes, "the operator keeps every element, and the type stays"),
    Law("t of t", ("library",), undone_by_itself, "two dimensions exchanged twice are where they were"),
    Law("permute undone", ("library",), permute_undone, "the orders compose to the order of before"),
)

LAWS: tuple[Law, ...] = (
    *ARITHMETIC_LAWS,
    *MOVEMENT_LAWS,
    *OF_LIBRARY,
)

BY_OP: dict[str, tuple[Law, ...]] = {
    op: tuple(law for law in LAWS if op in law.ops) for op in sorted({op for law in LAWS for op in law.ops})
}


def simplify(graph: Graph) -> Graph:
    """Replace values by simpler ones that equal them bit for bit."""
    return rebuild(graph, simpler)


def simpler(value: Value, groups: Groups) -> Value:
    """The first thing that a law gives for this value, or the value itself."""
    del groups
    for law in BY_OP.get(value.op, ()):
        found = law.apply(value)
        if found is not None:
            return found
    return value
