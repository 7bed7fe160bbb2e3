"""Divide and leave a remainder, as PyTorch defines it: fmod, remainder and floor_div, of floats and integers."""

from weft.codegen.llvm.module import FunctionWriter, Register, constant, element_of
from weft.codegen.vecmath.core import INFINITY, absolute, like, per_lane, rounded, with_sign

# Up to this quotient of two floats, quotient * divisor is exact in double.
LARGEST_EXACT_QUOTIENT = 2.0**29


def fmod_float(f: FunctionWriter, x: Register, y: Register) -> Register:
    """Give x - y * trunc(x / y) exactly, with the sign of x."""
    wide_x, wide_y = absolute(f, f.convert("fpext", x, "double")), absolute(f, f.convert("fpext", y, "double"))
    quotient = f.binary("fdiv", wide_x, wide_y)
    near = f.compare("fcmp olt", quotient, like(quotient, LARGEST_EXACT_QUOTIENT))
    # An infinite divisor would give infinity * 0.
    near = f.binary("and", near, f.compare("fcmp olt", wide_y, like(wide_y, INFINITY)))
    whole = rounded("trunc")(f, quotient)
    rest = f.binary("fsub", wide_x, f.binary("fmul", whole, wide_y))
    # A quotient just below an integer may have been rounded up to it.
    rest = f.select(f.compare("fcmp olt", rest, like(rest, 0.0)), f.binary("fadd", rest, wide_y), rest)
    result = with_sign(f, f.convert("fptrunc", rest, "float"), x)
    far = f.binary("xor", near, constant(near.kind, 1))

    def in_the_library() -> tuple[Register, ...]:
        return (f.select(far, per_lane(f, "fmodf", (x, y)), result),)

    return f.either(f.any_lane(far), in_the_library, lambda: (result,))[0]


def fmod_double(f: FunctionWriter, x: Register, y: Register) -> Register:
    """Give x - y * trunc(x / y) exactly, with the sign of x."""
    return per_lane(f, "fmod", (x, y))


def float_remainder(f: FunctionWriter, y: Register, rest: Register) -> Register:
    """Give the remainder with the sign of y, from fmod's."""
    return f.select(_crosses(f, y, rest), f.binary("fadd", rest, y), rest)


def float_floor_division(f: FunctionWriter, x: Register, y: Register, rest: Register) -> Register:
    """Give floor(x / y) as if the quotient were exact, from fmod's rest."""
    zero, one = like(x, 0.0), like(x, 1.0)
    exact = f.binary("fdiv", f.binary("fsub", x, rest), y)
    quotient = f.binary("fsub", exact, f.select(_crosses(f, y, rest), one, zero))
    below = rounded("floor")(f, quotient)
    short = f.compare("fcmp ogt", f.binary("fsub", quotient, below), like(x, 0.5))
    below = f.binary("fadd", below, f.select(short, one, zero))
    plain = f.binary("fdiv", x, y)
    below = f.select(f.compare("fcmp oeq", quotient, zero), with_sign(f, zero, plain), below)
    return f.select(f.compare("fcmp oeq", y, zero), plain, below)


def _crosses(f: FunctionWriter, y: Register, rest: Register) -> Register:
    """Tell where a rest that is not zero has another sign than the divisor."""
    zero = like(y, 0.0)
    signs = f.binary("xor", f.compare("fcmp olt", y, zero), f.compare("fcmp olt", rest, zero))
    return f.binary("and", f.compare("fcmp une", rest, zero), signs)


def integer_quotient(f: FunctionWriter, x: Register, y: Register, *, signed: bool) -> tuple[Register, Register]:
    """Give trunc(x / y) and the rest. A divisor of 0 counts as 1: the planner keeps such divisions with PyTorch.

    A divisor of -1 counts as 1 too, and the quotient is then negated: the processor stops at the smallest integer.
    """
    zero, one = constant(x.kind, 0), constant(x.kind, 1)
    y = f.select(f.compare("icmp eq", y, zero), one, y)
    if not signed:
        return f.binary("udiv", x, y), f.binary("urem", x, y)
    minus = f.compare("icmp eq", y, constant(x.kind, -1))
    safe = f.select(minus, one, y)
    quotient = f.binary("sdiv", x, safe)
    return f.select(minus, f.binary("sub", zero, quotient), quotient), f.binary("srem", x, safe)


def integer_floor_division(f: FunctionWriter, x: Register, y: Register, *, signed: bool) -> Register:
    """Give floor(x / y)."""
    quotient, rest = integer_quotient(f, x, y, signed=signed)
    if not signed:
        return quotient
    down = f.convert("zext", _integer_crosses(f, y, rest), element_of(x.kind))
    return f.binary("sub", quotient, down)


def integer_remainder(f: FunctionWriter, x: Register, y: Register, *, signed: bool) -> Register:
    """Give the remainder with the sign of y."""
    _, rest = integer_quotient(f, x, y, signed=signed)
    return f.select(_integer_crosses(f, y, rest), f.binary("add", rest, y), rest) if signed else rest


def _integer_crosses(f: FunctionWriter, y: Register, rest: Register) -> Register:
    zero = constant(y.kind, 0)
    signs = f.compare("icmp slt", f.binary("xor", y, rest), zero)
    return f.binary("and", signs, f.compare("icmp ne", rest, zero))
