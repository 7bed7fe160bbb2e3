"""Compute logarithms and what is made of them: log, log1p, log2, log10, pow, asinh, acosh, atanh."""

import math
from dataclasses import dataclass

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, element_of
from weft.codegen.vecmath.core import (
    INFINITY,
    NAN,
    absolute,
    at_least,
    at_most,
    bits,
    format_of,
    from_bits,
    like,
    polynomial,
    rounded,
    square_root,
    with_sign,
)
from weft.codegen.vecmath.exponential import LOG_2_HIGH, LOG_2_LOW, exp2

# The bits of sqrt(1/2): a number's exponent is counted from there, so its mantissa is within sqrt(2) of 1.
ROOT_HALF_BITS = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}
SMALLEST_NORMAL = {"float": 2.0**-126, "double": 2.0**-1022}
# 1 / log(2) as a number of half a mantissa, and the rest.
INVERSE_HIGH = {"float": 1.4423828125, "double": 1.4426946640014648}
INVERSE_LOW = {"float": 0.00031222838896340733, "double": 3.768874985636099e-07}
HIGH_HALF = -(1 << 32)
# From here on 1 + x is as good as x for the mantissa.
ONE_IS_NOTHING = {"float": 2.0**30, "double": 2.0**60}
LARGEST_FLOAT = 2.0**128  # more than any float, and its square fits a double
LARGEST_POWER = 1100.0  # of two: far outside float, inside double's exponents


@dataclass(frozen=True)
class Split:
    """A positive number as mantissa * 2^exponent; `power_bits` is the biased exponent in its place in a float."""

    exponent: Register
    mantissa: Register
    power_bits: Register


def split(f: FunctionWriter, x: Register) -> Split:
    """Split a number; what is not positive and finite gives nonsense, which the caller replaces."""
    layout, element = format_of(x), element_of(x.kind)
    tiny = f.compare("fcmp olt", x, like(x, SMALLEST_NORMAL[element]))
    lift = float(layout.mantissa_bits)
    raw = bits(f, f.select(tiny, f.binary("fmul", x, like(x, 2.0**lift)), x))
    width = like(raw, layout.mantissa_bits)
    biased = f.binary("lshr", f.binary("add", raw, like(raw, layout.one_bits - ROOT_HALF_BITS[element])), width)
    power = f.binary("shl", biased, width)
    mantissa = f.binary("add", f.binary("sub", raw, power), like(raw, layout.one_bits))
    # The biased exponent becomes a float by setting the exponent of a number whose last bit counts ones.
    whole = 2.0**layout.mantissa_bits
    whole_bits = (layout.bias + layout.mantissa_bits) << layout.mantissa_bits
    counted = from_bits(f, f.binary("or", biased, like(raw, whole_bits)), element)
    offset = f.select(tiny, like(x, whole + layout.bias + lift), like(x, whole + layout.bias))
    return Split(f.binary("fsub", counted, offset), from_bits(f, mantissa, element), power)


def log(f: FunctionWriter, x: Register) -> Register:
    """Give the natural logarithm."""
    parts = split(f, x)
    return _special(f, x, _natural(f, parts.exponent, f.binary("fsub", parts.mantissa, like(x, 1.0))))


def log1p(f: FunctionWriter, x: Register) -> Register:
    """Give log(1 + x), also where x is small."""
    element, one = element_of(x.kind), like(x, 1.0)
    total = f.binary("fadd", x, one)
    parts = split(f, total)
    # 2^-n (1 + x) - 1 from x itself, so that the rounding of the sum is not in it.
    doubled_bias = like(parts.power_bits, 2 * format_of(x).one_bits)
    down = from_bits(f, f.binary("sub", doubled_bias, parts.power_bits), element)
    exact = f.fma(x, down, f.binary("fsub", down, one))
    is_huge = f.compare("fcmp oge", total, like(x, ONE_IS_NOTHING[element]))
    fraction = f.select(is_huge, f.binary("fsub", parts.mantissa, one), exact)
    return with_sign(f, _special(f, total, _natural(f, parts.exponent, fraction)), x)


def log2(f: FunctionWriter, x: Register) -> Register:
    """Give the logarithm to base 2."""
    parts = split(f, x)
    fraction = f.binary("fsub", parts.mantissa, like(x, 1.0))
    rule = _binary_float if element_of(x.kind) == "float" else _binary_double
    return _special(f, x, rule(f, parts.exponent, fraction))


def log10(f: FunctionWriter, x: Register) -> Register:
    """Give the logarithm to base 10 in double, for arguments that come from float."""
    return f.binary("fmul", log(f, x), like(x, 1.0 / math.log(10.0)))


def asinh(f: FunctionWriter, x: Register) -> Register:
    """Give the inverse hyperbolic sine in double, for arguments that come from float."""
    size = at_most(f, absolute(f, x), LARGEST_FLOAT)
    square = f.binary("fmul", size, size)
    root = square_root(f, f.binary("fadd", square, like(x, 1.0)))
    extra = f.binary("fdiv", square, f.binary("fadd", root, like(x, 1.0)))
    result = log1p(f, f.binary("fadd", size, extra))
    infinite = f.compare("fcmp oeq", absolute(f, x), like(x, INFINITY))
    return with_sign(f, f.select(infinite, like(x, INFINITY), result), x)


def acosh(f: FunctionWriter, x: Register) -> Register:
    """Give the inverse hyperbolic cosine in double, for arguments that come from float."""
    excess = f.binary("fsub", at_most(f, x, LARGEST_FLOAT), like(x, 1.0))
    root = square_root(f, f.binary("fmul", excess, f.binary("fadd", excess, like(x, 2.0))))
    result = log1p(f, f.binary("fadd", excess, root))
    result = f.select(f.compare("fcmp olt", x, like(x, 1.0)), like(x, NAN), result)
    return f.select(f.compare("fcmp oeq", x, like(x, INFINITY)), x, result)


def atanh(f: FunctionWriter, x: Register) -> Register:
    """Give the inverse hyperbolic tangent in double, for arguments that come from float."""
    size, one = absolute(f, x), like(x, 1.0)
    ratio = f.binary("fdiv", f.binary("fadd", size, size), f.binary("fsub", one, size))
    return with_sign(f, f.binary("fmul", log1p(f, ratio), like(x, 0.5)), x)


def power(f: FunctionWriter, x: Register, y: Register) -> Register:
    """Give x^y in double, for operands that come from float: the product of y and log2(x) has bits to spare."""
    zero, one = like(x, 0.0), like(x, 1.0)
    size = absolute(f, x)
    product = f.binary("fmul", y, log2(f, size))
    result = exp2(f, at_least(f, at_most(f, product, LARGEST_POWER), -LARGEST_POWER))
    # A power of 1, the power 0, and 1 or -1 to an infinite power are 1, whatever the other operand is.
    infinite = f.compare("fcmp oeq", absolute(f, y), like(y, INFINITY))
    unit = f.binary("and", f.compare("fcmp oeq", size, one), infinite)
    for case in (f.compare("fcmp oeq", x, one), f.compare("fcmp oeq", y, zero), unit):
        result = f.select(case, one, result)
    whole = f.compare("fcmp oeq", rounded("trunc")(f, y), y)
    half = f.binary("fmul", y, like(y, 0.5))
    odd = f.binary("and", whole, f.compare("fcmp one", rounded("trunc")(f, half), half))
    negative = f.compare("icmp slt", bits(f, x), like(bits(f, x), 0))
    result = f.select(f.binary("and", odd, negative), f.fneg(result), result)
    undefined = f.binary("and", f.compare("fcmp olt", x, zero), f.compare("fcmp ogt", x, like(x, -INFINITY)))
    undefined = f.binary("and", undefined, f.compare("fcmp one", rounded("trunc")(f, y), y))
    return f.select(undefined, like(x, NAN), result)


def _natural(f: FunctionWriter, exponent: Register, fraction: Register) -> Register:
    element = element_of(fraction.kind)
    high, low = like(fraction, LOG_2_HIGH[element]), like(fraction, LOG_2_LOW[element])
    if element == "double":
        inner = f.binary("fsub", _curvature(f, fraction), f.binary("fmul", exponent, low))
        return f.fma(exponent, high, f.binary("fsub", fraction, inner))
    square = f.binary("fmul", fraction, fraction)
    cubic = f.binary("fmul", f.binary("fmul", square, fraction), polynomial(f, fraction, "log"))
    rest = f.fma(square, like(fraction, -0.5), f.fma(exponent, low, cubic))
    return f.fma(exponent, high, f.binary("fadd", rest, fraction))


def _curvature(f: FunctionWriter, fraction: Register) -> Register:
    """Give fraction - log(1 + fraction), from log((1 + s) / (1 - s)) with s = fraction / (2 + fraction)."""
    ratio = f.binary("fdiv", fraction, f.binary("fadd", fraction, like(fraction, 2.0)))
    square = f.binary("fmul", ratio, ratio)
    half_square = f.binary("fmul", f.binary("fmul", fraction, fraction), like(fraction, 0.5))
    series = f.fma(square, polynomial(f, square, "log"), half_square)
    return f.binary("fsub", half_square, f.binary("fmul", ratio, series))


def _binary_float(f: FunctionWriter, exponent: Register, fraction: Register) -> Register:
    square = f.binary("fmul", fraction, fraction)
    rest = f.binary("fmul", square, polynomial(f, fraction, "log2"))
    rest = f.fma(fraction, like(fraction, INVERSE_LOW["float"]), rest)
    return f.binary("fadd", f.fma(fraction, like(fraction, INVERSE_HIGH["float"]), rest), exponent)


def _binary_double(f: FunctionWriter, exponent: Register, fraction: Register) -> Register:
    raw = bits(f, fraction)
    high = from_bits(f, f.binary("and", raw, like(raw, HIGH_HALF)), "double")
    low = f.binary("fsub", f.binary("fsub", fraction, high), _curvature(f, fraction))
    scaled = f.binary("fmul", high, like(high, INVERSE_HIGH["double"]))
    rest = f.binary("fmul", f.binary("fadd", high, low), like(high, INVERSE_LOW["double"]))
    rest = f.fma(low, like(high, INVERSE_HIGH["double"]), rest)
    total = f.binary("fadd", exponent, scaled)
    lost = f.binary("fadd", f.binary("fsub", exponent, total), scaled)
    return f.binary("fadd", f.binary("fadd", rest, lost), total)


def _special(f: FunctionWriter, x: Register, result: Register) -> Register:
    """Put in the logarithms of 0, infinity, negative numbers and what is no number."""
    zero, infinity = like(x, 0.0), like(x, INFINITY)
    positive = f.compare("fcmp ogt", x, zero)
    ordinary = f.binary("and", positive, f.compare("fcmp olt", x, infinity))
    undefined = f.select(positive, x, like(x, NAN))
    edge = f.select(f.compare("fcmp oeq", x, zero), like(x, -INFINITY), undefined)
    return f.select(ordinary, result, edge)
