"""Compute exponentials, logarithms and what is made of them: from exp, tanh and erf to pow and acosh.

e^x = 2^n e^r,  n = round(x / log 2),  r = x - n log 2, in two parts;  |r| <= log(2) / 2, where e^r is a polynomial
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.codegen.llvm.module import FunctionWriter, Register, element_of
from weft.codegen.vecmath.core import (
    INFINITY,
    NAN,
    Multiple,
    absolute,
    at_least,
    at_most,
    bits,
    format_of,
    from_bits,
    like,
    nearest_multiple,
    polynomial,
    power_of_two,
    processor_scales,
    rounded,
    scale_by_power,
    square_root,
    through_double,
    with_sign,
)

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


# log(2) as a number with so few bits that products with exponents are exact, and the rest.
LOG_2_HIGH = {"float": 0.693115234375, "double": 0.6931471805592082}
LOG_2_LOW = {"float": 3.1946184945309415e-05, "double": 7.371002565167799e-13}
# Beyond these the result is 0 or infinity; inside, the exponent stays in the reach of scale_by_power.
LOWEST = {"float": -104.0, "double": -746.0}
HIGHEST = {"float": 89.0, "double": 710.0}
LOWEST_BINARY = {"float": -151.0, "double": -1076.0}
HIGHEST_BINARY = {"float": 129.0, "double": 1025.0}
# Below these, e^x - 1 rounds to -1; tanh is 1 from these on.
LOWEST_MINUS_ONE = {"float": -18.0, "double": -40.0}
TANH_IS_ONE = {"float": 10.0, "double": 22.0}
# tanh takes the next power by so much later than halfway; and from where on its results are a half and more.
TANH_LATER, TANH_IS_LARGE = 0.09, 0.6
ERF_IS_ONE = 3.95
SLOPE = 2.0 / math.sqrt(math.pi)  # of erf at 0
# The same as a float, and the rest.
SLOPE_HIGH, SLOPE_LOW = 1.128379225730896, -5.863538343753305e-08
ERFC_IS_ZERO = 11.0
ERFC_CENTER = 4.0  # of the substitution t = (x - 4) / (x + 4)


def exp(f: FunctionWriter, x: Register) -> Register:
    """Give e^x."""
    element = element_of(x.kind)
    # What is surely 0 is not computed: processors take a hundred cycles to round a product to nothing.
    vanishes = f.compare("fcmp olt", x, like(x, LOWEST[element]))
    x = f.select(vanishes, like(x, 0.0), at_most(f, x, HIGHEST[element]))
    rest, multiple = reduced(f, x)
    return f.select(vanishes, like(x, 0.0), scale_by_power(f, _exp_of_rest(f, rest), multiple))


def exp_moderate(f: FunctionWriter, x: Register) -> Register:
    """Give e^x where it is a normal number: the caller has limited x."""
    rest, multiple = reduced(f, x)
    if processor_scales(f, x):
        return scale_by_power(f, _exp_of_rest(f, rest), multiple)
    return f.binary("fmul", _exp_of_rest(f, rest), _whole_power(f, x, multiple))


def exp2(f: FunctionWriter, x: Register) -> Register:
    """Give 2^x."""
    element = element_of(x.kind)
    x = at_least(f, at_most(f, x, HIGHEST_BINARY[element]), LOWEST_BINARY[element])
    multiple = nearest_multiple(f, x, 1.0)
    rest = f.binary("fsub", x, multiple.value)
    return scale_by_power(f, f.fma(rest, polynomial(f, rest, "exp2"), like(x, 1.0)), multiple)


def expm1(f: FunctionWriter, x: Register) -> Register:
    """Give e^x - 1, also where x is small."""
    element = element_of(x.kind)
    limited = at_least(f, at_most(f, x, HIGHEST[element]), LOWEST_MINUS_ONE[element])
    rest, multiple = reduced(f, limited)
    small = _exp_minus_one_of_rest(f, rest)
    # 2^n (small + 1) - 1 with half the power, since 2^n itself may be infinite where the result is not.
    one_less = Multiple(
        f.binary("fsub", multiple.value, like(x, 1.0)), f.binary("sub", multiple.shifted, like(multiple.shifted, 1))
    )
    half_power = _whole_power(f, x, one_less)
    half = f.fma(half_power, small, f.binary("fsub", half_power, like(x, 0.5)))
    is_small = f.compare("fcmp oeq", multiple.value, like(x, 0.0))
    result = f.select(is_small, small, f.binary("fadd", half, half))
    return with_sign(f, result, x)  # -0 stays -0; elsewhere the signs agree anyhow


def expm1_of_negative(f: FunctionWriter, x: Register) -> Register:
    """Give e^x - 1 for a moderate x of at most 0."""
    rest, multiple = reduced(f, x)
    whole = _whole_power(f, x, multiple)
    return f.fma(whole, _exp_minus_one_of_rest(f, rest), f.binary("fsub", whole, like(x, 1.0)))


def sigmoid(f: FunctionWriter, x: Register) -> Register:
    """Give 1 / (1 + e^-x), without overflow on either side: 2^n / (2^n + e^-rest), where x is n log(2) + rest."""
    element, one = element_of(x.kind), like(x, 1.0)
    limited = at_most(f, at_least(f, x, LOWEST[element]), -LOWEST_MINUS_ONE[element])
    rest, multiple = reduced(f, limited)
    power = scale_by_power(f, one, multiple)
    head = f.binary("fadd", power, one)
    lost = f.binary("fsub", power, f.binary("fsub", head, one))
    # What the first sum lost counts beside a tiny power, which alone stands above.
    tail = f.binary("fadd", _exp_minus_one_of_rest(f, f.fneg(rest)), lost)
    return f.binary("fdiv", power, f.binary("fadd", head, tail))


def tanh(f: FunctionWriter, x: Register) -> Register:
    """Give the hyperbolic tangent: ((p + 1) t + p - 1) / ((p - 1) t + p + 1), t that of a rest of x, p a power of 2."""
    element = element_of(x.kind)
    one, two = like(x, 1.0), like(x, 2.0)
    size = at_most(f, absolute(f, x), TANH_IS_ONE[element])
    # p is the nearest power or a little smaller: it becomes 4 only where the result is a half and more.
    multiple = nearest_multiple(f, f.binary("fsub", size, like(x, TANH_LATER)), 2.0 / math.log(2.0))
    rest = f.fma(multiple.value, like(x, -LOG_2_HIGH[element] / 2.0), size)
    rest = f.fma(multiple.value, like(x, -LOG_2_LOW[element] / 2.0), rest)
    square = f.binary("fmul", rest, rest)
    small = f.fma(f.binary("fmul", rest, square), polynomial(f, square, "tanh"), rest)
    power = _whole_power(f, x, multiple)
    less, more = f.binary("fsub", power, one), f.binary("fadd", power, one)
    below = f.fma(less, small, more)
    # There the numerator is made from the denominator, whose rounding then counts little: the two are nearly the same.
    is_large = f.compare("fcmp ogt", size, like(x, TANH_IS_LARGE))
    factor, start = f.select(is_large, two, more), f.select(is_large, f.binary("fsub", below, two), less)
    return with_sign(f, f.binary("fdiv", f.fma(factor, small, start), below), x)


def sinh(f: FunctionWriter, x: Register) -> Register:
    """Give the hyperbolic sine, in double for arguments that come from float."""
    power = expm1(f, absolute(f, x))
    both = f.binary("fadd", power, f.binary("fdiv", power, f.binary("fadd", power, like(x, 1.0))))
    # Where e^x is infinite the quotient is no number, but the result is infinite.
    both = f.select(f.compare("fcmp oeq", power, like(x, math.inf)), power, both)
    return with_sign(f, f.binary("fmul", both, like(x, 0.5)), x)


def cosh(f: FunctionWriter, x: Register) -> Register:
    """Give the hyperbolic cosine, in double for arguments that come from float."""
    power = exp(f, absolute(f, x))
    both = f.binary("fadd", power, f.binary("fdiv", like(x, 1.0), power))
    return f.binary("fmul", both, like(x, 0.5))


def reduced(f: FunctionWriter, x: Register) -> tuple[Register, Multiple]:
    """Split x into n log(2) + rest: the rest, and n."""
    element = element_of(x.kind)
    multiple = nearest_multiple(f, x, 1.0 / math.log(2.0))
    rest = f.fma(multiple.value, like(x, -LOG_2_HIGH[element]), x)
    return f.fma(multiple.value, like(x, -LOG_2_LOW[element]), rest), multiple


def _exp_of_rest(f: FunctionWriter, rest: Register) -> Register:
    return f.binary("fadd", _exp_minus_one_of_rest(f, rest), like(rest, 1.0))


def _exp_minus_one_of_rest(f: FunctionWriter, rest: Register) -> Register:
    return f.fma(f.binary("fmul", rest, rest), polynomial(f, rest, "exp"), rest)


def _whole_power(f: FunctionWriter, x: Register, multiple: Multiple) -> Register:
    if processor_scales(f, x):
        return scale_by_power(f, like(x, 1.0), multiple)
    exponent = f.binary("sub", multiple.shifted, like(multiple.shifted, format_of(x).rounder_bits))
    return power_of_two(f, exponent, element_of(x.kind))


def erf(f: FunctionWriter, x: Register) -> Register:
    """Give the error function of a float: 1 - e^-t, where t / |x| is a polynomial."""
    if not f.fused:
        return through_double(_erf_in_double)(f, x)
    size = at_most(f, absolute(f, x), ERF_IS_ONE)
    # t = |x| (SLOPE + |x| p(|x|)), rounded once where it matters, near 0.
    rest = f.fma(size, polynomial(f, size, "erf"), like(x, SLOPE_LOW))
    decay = f.fma(size, like(x, SLOPE_HIGH), f.binary("fmul", size, rest))
    return with_sign(f, expm1_of_negative(f, f.fneg(decay)), x)


def _erf_in_double(f: FunctionWriter, x: Register) -> Register:
    size = at_most(f, absolute(f, x), ERF_IS_ONE)
    decay = f.binary("fmul", size, f.fma(size, polynomial(f, size, "erf"), like(x, SLOPE)))
    return with_sign(f, expm1_of_negative(f, f.fneg(decay)), x)


def erfc(f: FunctionWriter, x: Register) -> Register:
    """Give 1 - erf(x) in double, for arguments that come from float: also where it is tiny."""
    size = at_most(f, absolute(f, x), ERFC_IS_ZERO)
    center = like(x, ERFC_CENTER)
    place = f.binary("fdiv", f.binary("fsub", size, center), f.binary("fadd", size, center))
    scale = f.fma(size, like(x, 2.0), like(x, 1.0))
    decay = exp_moderate(f, f.fneg(f.binary("fmul", size, size)))
    value = f.binary("fdiv", f.binary("fmul", polynomial(f, place, "erfcx"), decay), scale)
    negative = f.compare("fcmp olt", x, like(x, 0.0))
    return f.select(negative, f.binary("fsub", like(x, 2.0), value), value)
