"""Give what vector mathematics is built from: polynomials, bits of floats, rounding, one call per lane.

Every rule takes the writer of a function and registers of one float type, scalar or vector, "float" or "double", and
treats every lane alike, so a lane's result never depends on its neighbours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, constant, element_of, integer_like, lanes_of, with_element
from weft.codegen.vecmath.tables import POLYNOMIALS

Rule = Callable[..., Register]


@dataclass(frozen=True)
class Format:
    """The layout of a float type, and a number whose addition rounds to an integer in the low bits."""

    mantissa_bits: int
    bias: int

    @property
    def rounder(self) -> float:
        """1.5 times the number from which on a float has no fraction."""
        return 1.5 * 2.0**self.mantissa_bits

    @property
    def rounder_bits(self) -> int:
        """The same number as an integer of its bits."""
        return ((self.bias + self.mantissa_bits) << self.mantissa_bits) | (1 << (self.mantissa_bits - 1))

    @property
    def one_bits(self) -> int:
        """The number one as an integer of its bits."""
        return self.bias << self.mantissa_bits


FORMATS = {"float": Format(23, 127), "double": Format(52, 1023)}
INFINITY = float("inf")
NAN = float("nan")


def format_of(x: Register) -> Format:
    """Give the layout of a register's float type."""
    return FORMATS[element_of(x.kind)]


def like(x: Register, value: float) -> Register:
    """Make a constant of the type of x."""
    return constant(x.kind, value)


def bits(f: FunctionWriter, x: Register) -> Register:
    """Read a float's bits as an integer."""
    return f.bitcast(x, integer_like(x.kind))


def from_bits(f: FunctionWriter, x: Register, element: str) -> Register:
    """Read an integer's bits as a float."""
    return f.bitcast(x, with_element(x.kind, element))


def polynomial(f: FunctionWriter, x: Register, name: str) -> Register:
    """Evaluate a polynomial of the tables by Horner's rule."""
    *rest, top = POLYNOMIALS[name, element_of(x.kind)]
    total = like(x, top)
    for coefficient in reversed(rest):
        total = f.fma(total, x, like(x, coefficient))
    return total


def absolute(f: FunctionWriter, x: Register) -> Register:
    """Clear the sign."""
    return f.intrinsic("llvm.fabs", x.kind, x)


def with_sign(f: FunctionWriter, magnitude: Register, sign: Register) -> Register:
    """Give a number the sign bit of another."""
    return f.intrinsic("llvm.copysign", magnitude.kind, magnitude, sign)


def at_most(f: FunctionWriter, x: Register, bound: float) -> Register:
    """Replace what is greater than a bound; what is not a number stays so."""
    return f.select(f.compare("fcmp ogt", x, like(x, bound)), like(x, bound), x)


def at_least(f: FunctionWriter, x: Register, bound: float) -> Register:
    """Replace what is less than a bound; what is not a number stays so."""
    return f.select(f.compare("fcmp olt", x, like(x, bound)), like(x, bound), x)


def without_subnormals(f: FunctionWriter, x: Register) -> Register:
    """Replace numbers that are less than normal by 0: each product of one takes a processor a hundred cycles."""
    layout = format_of(x)
    tiny = f.compare("fcmp olt", absolute(f, x), like(x, 2.0 ** (1 - layout.bias)))
    return f.select(tiny, like(x, 0.0), x)


@dataclass(frozen=True, slots=True)
class Multiple:
    """An integer for every lane: as a float, and in the low bits of an integer that is `Format.rounder_bits` more."""

    value: Register
    shifted: Register


def nearest_multiple(f: FunctionWriter, x: Register, factor: float) -> Multiple:
    """Round x * factor to an integer."""
    rounder = like(x, format_of(x).rounder)
    shifted = f.fma(x, like(x, factor), rounder)
    return Multiple(f.binary("fsub", shifted, rounder), bits(f, shifted))


def power_of_two(f: FunctionWriter, exponent: Register, element: str) -> Register:
    """Give 2^exponent for integers within the normal range."""
    layout = FORMATS[element]
    biased = f.binary("add", exponent, like(exponent, layout.bias))
    return from_bits(f, f.binary("shl", biased, like(exponent, layout.mantissa_bits)), element)


def scale_by_power(f: FunctionWriter, x: Register, exponent: Multiple) -> Register:
    """Give x * 2^n, rounded once, also where 2^n or the result is outside the normal range."""
    if processor_scales(f, x):
        return _scaled_by_processor(f, x, exponent.value)
    shifted = exponent.shifted
    number = f.binary("sub", shifted, like(shifted, format_of(x).rounder_bits))
    # Half of n, rounded down, by a shift without sign: AVX2 has no other of 64 bits.
    lifted = f.binary("add", number, like(number, 4096))
    half = f.binary("sub", f.binary("lshr", lifted, like(number, 1)), like(number, 2048))
    rest = f.binary("sub", number, half)
    for part in (half, rest):
        x = f.binary("fmul", x, power_of_two(f, part, element_of(x.kind)))
    return x


# The types that the processor's own x * 2^n takes: its intrinsic, and the type of the mask that names every lane.
SCALEF = {
    "<16 x float>": ("llvm.x86.avx512.mask.scalef.ps.512", "i16"),
    "<8 x double>": ("llvm.x86.avx512.mask.scalef.pd.512", "i8"),
}
CURRENT_ROUNDING = 4


def processor_scales(f: FunctionWriter, x: Register) -> bool:
    """Tell whether `scale_by_power` is one instruction here."""
    return x.kind in SCALEF and f.target.has("avx512f")


def _scaled_by_processor(f: FunctionWriter, x: Register, exponent: Register) -> Register:
    name, mask = SCALEF[x.kind]
    operands = (x, exponent, Register(x.kind, "poison"), constant(mask, -1), constant("i32", CURRENT_ROUNDING))
    return f.intrinsic(name, x.kind, *operands, suffix=())


def per_lane(f: FunctionWriter, name: str, operands: Sequence[Register]) -> Register:
    """Call a function of the C library for every lane."""
    kind = operands[0].kind
    result = Register(kind, "poison")
    for lane in range(lanes_of(kind)):
        scalars = [f.extract(operand, lane) for operand in operands]
        result = f.insert(result, f.imported(name, element_of(kind), *scalars), lane)
    return result


def through_double(rule: Rule) -> Rule:
    """Make a rule for float from one for double: twice the work, and half a unit in the last place."""

    def widened(f: FunctionWriter, *operands: Register) -> Register:
        return f.convert("fptrunc", rule(f, *[f.convert("fpext", x, "double") for x in operands]), "float")

    return widened


def has_rounding(f: FunctionWriter) -> bool:
    """Tell whether the processor rounds floats to integers by itself; LLVM would call the C library if not."""
    return f.target.has("sse4.1") or f.target.triple.startswith("aarch64")


ROUNDINGS = {"floor": "llvm.floor", "ceil": "llvm.ceil", "trunc": "llvm.trunc", "round": "llvm.roundeven"}


def rounded(mode: str) -> Rule:
    """Give the rule that rounds to an integer: floor, ceil, trunc, or round (halves to even)."""

    def rule(f: FunctionWriter, x: Register) -> Register:
        return f.intrinsic(ROUNDINGS[mode], x.kind, x) if has_rounding(f) else _rounded_by_addition(f, mode, x)

    return rule


def _rounded_by_addition(f: FunctionWriter, mode: str, x: Register) -> Register:
    size = absolute(f, x)
    whole = like(x, 2.0 ** format_of(x).mantissa_bits)
    nearest = f.binary("fsub", f.binary("fadd", size, whole), whole)
    one, zero = like(x, 1.0), like(x, 0.0)
    if mode == "trunc":
        excess = f.select(f.compare("fcmp ogt", nearest, size), one, zero)
        nearest = f.binary("fsub", nearest, excess)
    nearest = with_sign(f, nearest, x)
    if mode == "floor":
        nearest = f.binary("fsub", nearest, f.select(f.compare("fcmp ogt", nearest, x), one, zero))
    if mode == "ceil":
        nearest = f.binary("fadd", nearest, f.select(f.compare("fcmp olt", nearest, x), one, zero))
    # Numbers without a fraction, infinities and what is no number stay as they are; -0.5 rounds up to -0.
    return f.select(f.compare("fcmp olt", size, whole), with_sign(f, nearest, x), x)


def square_root(f: FunctionWriter, x: Register) -> Register:
    """Give the square root, correctly rounded."""
    return f.intrinsic("llvm.sqrt", x.kind, x)
