"""The error function and its complement: erf, erfc."""

import math

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register
from weft.codegen.vecmath.core import absolute, at_most, like, polynomial, through_double, with_sign
from weft.codegen.vecmath.exponential import exp_moderate, expm1_of_negative

ERF_IS_ONE = 3.95
SLOPE = 2.0 / math.sqrt(math.pi)  # of erf at 0
# The same as a float, and the rest.
SLOPE_HIGH, SLOPE_LOW = 1.128379225730896, -5.863538343753305e-08
ERFC_IS_ZERO = 11.0
ERFC_CENTER = 4.0  # of the substitution t = (x - 4) / (x + 4)


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
