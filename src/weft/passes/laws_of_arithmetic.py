"""Simplify arithmetic, element by element, by laws that hold bit for bit, for infinities, both zeros and wrap.

A NaN stays a NaN; its sign and payload are nobody's promise (PyTorch's own vector and scalar loops differ in them).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from weft.ir.graph import Value
from weft.passes.rewrite import Apply, Law, Number, operand_if_alike, rebuilt, tensor_type, uniform

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

LAWS = (
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
