"""The error function and its complement: erf, erfc."""

from weft.codegen.module import FunctionWriter
from weft.codegen.register import Register
from weft.codegen.vecmath_core import absolute, at_most, like, polynomial, with_sign
from weft.codegen.vecmath_exponential import exp_moderate

ERF_IS_SMALL = 0.9
ERF_IS_ONE = 4.0
ERFC_IS_ZERO = 11.0
ERFC_CENTER = 4.0  # of the substitution t = (x - 4) / (x + 4)


def erf(f: FunctionWriter, x: Register) -> Register:
    """Give the error function of a float."""
    size = at_most(f, absolute(f, x), ERF_IS_ONE)
    square = f.binary("fmul", size, size)
    small = f.fma(size, polynomial(f, square, "erf"), size)
    rest = exp_moderate(f, f.fneg(polynomial(f, size, "erf_tail")))
    large = f.binary("fsub", like(x, 1.0), rest)
    return with_sign(f, f.select(f.compare("fcmp olt", size, like(x, ERF_IS_SMALL)), small, large), x)


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
