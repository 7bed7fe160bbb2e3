"""Compute exponentials and what is made of them: exp, exp2, expm1, sigmoid, tanh, sinh, cosh, erf, erfc.

e^x = 2^n e^r,  n = round(x / log 2),  r = x - n log 2, in two parts;  |r| <= log(2) / 2, where e^r is a polynomial
"""

import math

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, element_of
from weft.codegen.vecmath.core import (
    Multiple,
    absolute,
    at_least,
    at_most,
    format_of,
    like,
    nearest_multiple,
    polynomial,
    power_of_two,
    processor_scales,
    scale_by_power,
    through_double,
    with_sign,
)

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
