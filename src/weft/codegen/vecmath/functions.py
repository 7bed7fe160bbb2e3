"""Give the rule of each mathematical function on vectors: of circular functions and their inverses, and of all others.

float rules work in float where that is accurate enough and on the way through double where it is not; in double, what
has no rule of its own is the C library's function, called for every lane.

Arguments are reduced by multiples of pi/2 in double. Up to LARGE the multiple is subtracted in two parts; beyond, the
argument, an integer times a power of two, is multiplied by that power of 2/pi modulo 4 from a table of three parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.codegen.llvm.module import FunctionWriter, Register, bits_of, element_of, with_element
from weft.codegen.vecmath import exponential, remainder
from weft.codegen.vecmath.core import (
    FORMATS,
    INFINITY,
    NAN,
    Rule,
    absolute,
    bits,
    from_bits,
    like,
    nearest_multiple,
    per_lane,
    polynomial,
    square_root,
    through_double,
    with_sign,
)
from weft.errors import InternalError

LARGE = 2.0**20
HALF_PI = math.pi / 2
# pi/2 as a number of 33 bits, whose products with multiples up to LARGE are exact, and the rest.
HALF_PI_HIGH, HALF_PI_LOW = 1.5707963267341256, 6.077100506506192e-11
# The rest again as a number of 33 bits and what is left, for arguments that are double themselves.
HALF_PI_MIDDLE, HALF_PI_LAST = 6.077100506303966e-11, 2.0222662487959506e-21
# 2/pi in binary, so many bits of it behind the point.
TWO_OVER_PI, BITS = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E0, 320
# An integer of 24 bits times 2^e, where e is the exponent of a float from LARGE on: so many rows of a table.
TURN_FIRST_EXPONENT, TURN_LAST_EXPONENT = -3, 104
HIGH_BITS, MIDDLE_BITS = 27, 56


def turn_parts(exponent: int) -> tuple[float, float, float]:
    """Give (2^exponent 2/pi) mod 4 in three parts: its bits down to 2^-27, those down to 2^-56, and the rest.

    Products of the first two with integers of 24 bits are exact in double.
    """
    point = BITS - TURN_FIRST_EXPONENT
    whole = (TWO_OVER_PI << (exponent - TURN_FIRST_EXPONENT)) % (4 << point)
    high = whole >> (point - HIGH_BITS)
    middle = (whole >> (point - MIDDLE_BITS)) - (high << (MIDDLE_BITS - HIGH_BITS))
    rest = whole % (1 << (point - MIDDLE_BITS))
    return high / (1 << HIGH_BITS), middle / (1 << MIDDLE_BITS), rest / (1 << point)


TURN_HIGH, TURN_MIDDLE, TURN_LOW = zip(
    *map(turn_parts, range(TURN_FIRST_EXPONENT, TURN_LAST_EXPONENT + 1)), strict=True
)


def sin_double(f: FunctionWriter, x: Register) -> Register:
    """Give the sine of a double."""
    result = _of_double(f, x, "sin", 0)
    return f.select(f.compare("fcmp oeq", x, like(x, 0.0)), x, result)  # or the sign of -0 would be lost


def cos_double(f: FunctionWriter, x: Register) -> Register:
    """Give the cosine of a double."""
    return _of_double(f, x, "cos", 1)


def _of_double(f: FunctionWriter, x: Register, name: str, turn: int) -> Register:
    """Give the sine of x + turn * pi/2; beyond LARGE, the C library's function of that name."""
    multiple = nearest_multiple(f, x, 1.0 / HALF_PI)
    rest = x
    for part in (HALF_PI_HIGH, HALF_PI_MIDDLE, HALF_PI_LAST):
        rest = f.fma(multiple.value, like(x, -part), rest)
    near = _turned(f, rest, f.binary("add", multiple.shifted, like(multiple.shifted, turn)))
    far = f.compare("fcmp oge", absolute(f, x), like(x, LARGE))

    def with_library() -> tuple[Register, ...]:
        return (f.select(far, per_lane(f, name, (x,)), near),)

    return f.either(f.any_lane(far), with_library, lambda: (near,))[0]


def sin(f: FunctionWriter, x: Register) -> Register:
    """Give the sine of a float."""
    rest, quadrant = _reduced(f, x)
    result = _turned(f, f.convert("fptrunc", rest, "float"), quadrant)
    return f.select(f.compare("fcmp oeq", x, like(x, 0.0)), x, result)  # or the sign of -0 would be lost


def cos(f: FunctionWriter, x: Register) -> Register:
    """Give the cosine of a float."""
    rest, quadrant = _reduced(f, x)
    return _turned(f, f.convert("fptrunc", rest, "float"), f.binary("add", quadrant, like(quadrant, 1)))


def tan(f: FunctionWriter, x: Register) -> Register:
    """Give the tangent of a float; the quotient is taken in double."""
    rest, quadrant = _reduced(f, x)
    sine, cosine = _sine(f, rest), _cosine(f, rest)
    odd = _bit(f, f.convert("sext", quadrant, "i64"), 0)
    above, below = f.select(odd, f.fneg(cosine), sine), f.select(odd, sine, cosine)
    quotient = f.convert("fptrunc", f.binary("fdiv", above, below), "float")
    return f.select(f.compare("fcmp oeq", x, like(x, 0.0)), x, quotient)


def atan(f: FunctionWriter, x: Register) -> Register:
    """Give the arc tangent in double, for arguments that come from float."""
    size, one = absolute(f, x), like(x, 1.0)
    inverted = f.compare("fcmp ogt", size, one)
    ratio = f.binary("fdiv", f.select(inverted, one, size), f.select(inverted, size, one))
    angle = _odd_series(f, ratio, "atan")
    return with_sign(f, f.select(inverted, f.binary("fsub", like(x, HALF_PI), angle), angle), x)


def atan2(f: FunctionWriter, y: Register, x: Register) -> Register:
    """Give the angle of the point (x, y) in double, for coordinates that come from float."""
    rise, run = absolute(f, y), absolute(f, x)
    steep = f.compare("fcmp ogt", rise, run)
    below, above = f.select(steep, rise, run), f.select(steep, run, rise)
    ratio = f.binary("fdiv", above, below)
    # 0/0 counts as 0 and infinity/infinity as 1; what is no number stays so.
    ratio = f.select(f.compare("fcmp oeq", below, like(x, 0.0)), below, ratio)
    ratio = f.select(f.compare("fcmp oeq", above, like(x, INFINITY)), like(x, 1.0), ratio)
    angle = _odd_series(f, ratio, "atan")
    angle = f.select(steep, f.binary("fsub", like(x, HALF_PI), angle), angle)
    backward = f.compare("icmp slt", bits(f, x), like(bits(f, x), 0))
    angle = f.select(backward, f.binary("fsub", like(x, math.pi), angle), angle)
    angle = f.select(f.compare("fcmp uno", x, y), like(x, NAN), angle)
    return with_sign(f, angle, y)


def asin(f: FunctionWriter, x: Register) -> Register:
    """Give the arc sine in double, for arguments that come from float."""
    size = absolute(f, x)
    near_one, angle = _arc_sine_parts(f, size)
    large = f.binary("fsub", like(x, HALF_PI), f.binary("fadd", angle, angle))
    return with_sign(f, f.select(near_one, large, angle), x)


def acos(f: FunctionWriter, x: Register) -> Register:
    """Give the arc cosine in double, for arguments that come from float."""
    near_one, angle = _arc_sine_parts(f, absolute(f, x))
    twice = f.binary("fadd", angle, angle)
    negative = f.compare("fcmp olt", x, like(x, 0.0))
    large = f.select(negative, f.binary("fsub", like(x, math.pi), twice), twice)
    return f.select(near_one, large, f.binary("fsub", like(x, HALF_PI), with_sign(f, angle, x)))


def _arc_sine_parts(f: FunctionWriter, size: Register) -> tuple[Register, Register]:
    """Tell where a size is over 1/2, and give there the arc sine of sqrt((1 - size) / 2), elsewhere that of size."""
    half = like(size, 0.5)
    near_one = f.compare("fcmp ogt", size, half)
    root = square_root(f, f.binary("fmul", f.binary("fsub", like(size, 1.0), size), half))
    return near_one, _odd_series(f, f.select(near_one, root, size), "asin")


def _odd_series(f: FunctionWriter, x: Register, name: str) -> Register:
    square = f.binary("fmul", x, x)
    return f.fma(f.binary("fmul", square, x), polynomial(f, square, name), x)


def _sine(f: FunctionWriter, rest: Register) -> Register:
    return _odd_series(f, rest, "sin")


def _cosine(f: FunctionWriter, rest: Register) -> Register:
    square = f.binary("fmul", rest, rest)
    small = f.fma(square, like(rest, -0.5), like(rest, 1.0))
    return f.fma(f.binary("fmul", square, square), polynomial(f, square, "cos"), small)


def _turned(f: FunctionWriter, rest: Register, quadrant: Register) -> Register:
    """Give the sine of rest + quadrant * pi/2."""
    value = f.select(_bit(f, quadrant, 0), _cosine(f, rest), _sine(f, rest))
    last = bits_of(rest.kind) - 1
    sign = f.binary("shl", f.binary("lshr", quadrant, like(quadrant, 1)), like(quadrant, last))
    return from_bits(f, f.binary("xor", bits(f, value), sign), element_of(rest.kind))


def _bit(f: FunctionWriter, x: Register, number: int) -> Register:
    kept = f.binary("and", x, like(x, 1 << number))
    return f.compare("icmp ne", kept, like(x, 0))


def _reduced(f: FunctionWriter, x: Register) -> tuple[Register, Register]:
    """Give x minus a multiple of pi/2, in double, and that multiple modulo 2^32 as an integer."""
    wide = f.convert("fpext", x, "double")
    near = _reduced_by_subtraction(f, wide)
    far = f.compare("fcmp oge", absolute(f, x), like(x, LARGE))

    def with_table() -> tuple[Register, ...]:
        beyond = _reduced_by_table(f, x)
        return tuple(f.select(far, there, here) for there, here in zip(beyond, near, strict=True))

    rest, quadrant = f.either(f.any_lane(far), with_table, lambda: near)
    return rest, quadrant


def _reduced_by_subtraction(f: FunctionWriter, wide: Register) -> tuple[Register, Register]:
    multiple = nearest_multiple(f, wide, 1.0 / HALF_PI)
    rest = f.fma(multiple.value, like(wide, -HALF_PI_HIGH), wide)
    rest = f.fma(multiple.value, like(wide, -HALF_PI_LOW), rest)
    return rest, f.convert("trunc", multiple.shifted, "i32")


def _reduced_by_table(f: FunctionWriter, x: Register) -> tuple[Register, Register]:
    layout = FORMATS["float"]
    raw = bits(f, absolute(f, x))
    biased = f.binary("lshr", raw, like(raw, layout.mantissa_bits))
    # The mantissa as an integer: the bits of the number 2^23 to 2^24 with the same digits.
    digits = f.binary("and", raw, like(raw, (1 << layout.mantissa_bits) - 1))
    whole = like(raw, (layout.bias + layout.mantissa_bits) << layout.mantissa_bits)
    integer = f.convert("fpext", from_bits(f, f.binary("or", digits, whole), "float"), "double")
    row = f.binary("sub", biased, like(raw, layout.bias + layout.mantissa_bits + TURN_FIRST_EXPONENT))
    high, middle, low = (_row_of(f, row, table) for table in (TURN_HIGH, TURN_MIDDLE, TURN_LOW))
    first = f.binary("fmul", integer, high)  # exact, as is the next
    second = f.binary("fmul", integer, middle)
    turns = nearest_multiple(f, first, 0.25)
    first = f.binary("fsub", first, f.binary("fmul", turns.value, like(first, 4.0)))
    quarter = nearest_multiple(f, f.binary("fadd", first, second), 1.0)
    fraction = f.binary("fadd", f.binary("fsub", first, quarter.value), second)
    fraction = f.fma(integer, low, fraction)
    rest = f.binary("fmul", fraction, like(fraction, HALF_PI))
    quadrant = f.convert("trunc", quarter.shifted, "i32")
    negative = f.compare("fcmp olt", x, like(x, 0.0))
    rest = f.select(negative, f.fneg(rest), rest)
    quadrant = f.select(negative, f.binary("sub", like(quadrant, 0), quadrant), quadrant)
    finite = f.compare("fcmp olt", absolute(f, x), like(x, INFINITY))
    return f.select(finite, rest, like(rest, NAN)), quadrant


def _row_of(f: FunctionWriter, row: Register, table: tuple[float, ...]) -> Register:
    """Read a table's row for every lane; a row outside it gives any row, for lanes that do not use it."""
    zero, top = like(row, 0), like(row, len(table) - 1)
    row = f.select(f.compare("icmp slt", row, zero), zero, row)
    row = f.select(f.compare("icmp sgt", row, top), top, row)
    # SAFETY: the row is clamped to the table, which is a constant of the module.
    pointer = f.module.table("double", table)
    addresses = with_element(row.kind, "ptr")
    pointers = f.emit(addresses, f"getelementptr double, {pointer}, {f.convert('sext', row, 'i64')}")
    return f.gather(with_element(row.kind, "double"), pointers)


def library(name: str) -> Rule:
    """Make the rule that calls a function of the C library for every lane."""

    def rule(f: FunctionWriter, *operands: Register) -> Register:
        return per_lane(f, name, operands)

    return rule


FUNCTIONS: dict[str, dict[str, Rule]] = {
    "exp": {"float": exponential.exp, "double": exponential.exp},
    "exp2": {"float": exponential.exp2, "double": exponential.exp2},
    "expm1": {"float": exponential.expm1, "double": exponential.expm1},
    "log": {"float": exponential.log, "double": exponential.log},
    "log1p": {"float": exponential.log1p, "double": exponential.log1p},
    "log2": {"float": exponential.log2, "double": exponential.log2},
    "pow": {"float": through_double(exponential.power), "double": library("pow")},
    "sigmoid": {"float": exponential.sigmoid, "double": exponential.sigmoid},
    "tanh": {"float": exponential.tanh, "double": exponential.tanh},
    "sinh": {"float": through_double(exponential.sinh), "double": library("sinh")},
    "cosh": {"float": through_double(exponential.cosh), "double": library("cosh")},
    "sin": {"float": sin, "double": sin_double},
    "cos": {"float": cos, "double": cos_double},
    "tan": {"float": tan, "double": library("tan")},
    "asin": {"float": through_double(asin), "double": library("asin")},
    "acos": {"float": through_double(acos), "double": library("acos")},
    "atan": {"float": through_double(atan), "double": library("atan")},
    "atan2": {"float": through_double(atan2), "double": library("atan2")},
    "erf": {"float": exponential.erf, "double": library("erf")},
    "erfc": {"float": through_double(exponential.erfc), "double": library("erfc")},
    "fmod": {"float": remainder.fmod_float, "double": remainder.fmod_double},
    "log10": {"float": through_double(exponential.log10), "double": library("log10")},
    "asinh": {"float": through_double(exponential.asinh), "double": library("asinh")},
    "acosh": {"float": through_double(exponential.acosh), "double": library("acosh")},
    "atanh": {"float": through_double(exponential.atanh), "double": library("atanh")},
}


def emit_function(f: FunctionWriter, name: str, operands: Sequence[Register]) -> Register:
    """Compute a function of FUNCTIONS on scalars or vectors of float or double."""
    rules = FUNCTIONS.get(name, {})
    rule = rules.get(element_of(operands[0].kind))
    if rule is None:
        raise InternalError(f"no rule computes {name} on {operands[0].kind}", why="there are: " + ", ".join(FUNCTIONS))
    return rule(f, *operands)
