"""Give what vector mathematics is built from: polynomials, their coefficients, bits of floats, calls per lane.

Every rule takes the writer of a function and registers of one float type, scalar or vector, "float" or "double", and
treats every lane alike, so a lane's result never depends on its neighbours.

Each row of coefficients, lowest power first, was computed by the Remez exchange in 110 digits for the expression and
interval its comment names, then rounded to the element type; tests/codegen/vecmath/test_vecmath.py measures what the
functions built on them reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.codegen.llvm.module import (
    FunctionWriter,
    Register,
    constant,
    element_of,
    integer_like,
    lanes_of,
    with_element,
)

# fmt: off
POLYNOMIALS: dict[tuple[str, str], tuple[float, ...]] = {
    # (e^r - 1 - r) / r^2, |r| <= log(2) / 2
    ("exp", "float"): (
        0.5, 0.16666576266288757, 0.04166637361049652, 0.00836329534649849, 0.001394132268615067,
    ),
    # the same
    ("exp", "double"): (
        0.5000000000000001, 0.16666666666666674, 0.04166666666662347, 0.008333333333322037,
        0.0013888888917540046, 0.0001984126988711255, 2.4801520790251163e-05, 2.755724174818074e-06,
        2.7620328390867947e-07, 2.5110271197691585e-08,
    ),
    # (2^r - 1) / r, |r| <= 1/2
    ("exp2", "float"): (
        0.6931471824645996, 0.24022650718688965, 0.055503569543361664, 0.009618030861020088,
        0.0013390866806730628, 0.0001546973508084193,
    ),
    # the same
    ("exp2", "double"): (
        0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.009618129107628487,
        0.0013333558146406469, 0.00015403530393354775, 1.525273384155832e-05, 1.3215486823297363e-06,
        1.0178057087026738e-07, 7.054891467396162e-09, 4.45581802146631e-10, 2.5737814054517824e-11,
    ),
    # (log(1 + f) - f + f^2 / 2) / f^3, 1 + f within a factor of sqrt(2) of 1
    ("log", "float"): (
        0.3333333134651184, -0.24999980628490448, 0.20000694692134857, -0.16669189929962158,
        0.1425093561410904, -0.12395670264959335, 0.11636045575141907, -0.11668024957180023,
        0.07338438183069229,
    ),
    # (log((1 + s) / (1 - s)) - 2 s) / s^3 in z = s^2, s = f / (2 + f), f as above
    ("log", "double"): (
        0.666666666666667, 0.3999999999989063, 0.2857142862991294, 0.22222210504096662, 0.18182934326417646,
        0.15330240984540122, 0.14634509338487453,
    ),
    # (log2(1 + f) - f / log(2)) / f^2, f as above
    ("log2", "float"): (
        -0.7213475108146667, 0.48089805245399475, -0.36068469285964966, 0.28857848048210144,
        -0.2399011254310608, 0.20446357131004333, -0.18861894309520721, 0.18649248778820038,
        -0.11644064635038376,
    ),
    # (tanh(x) - x) / x^3 in z = x^2, x <= log(2) / 4 + 0.09
    ("tanh", "float"): (
        -0.3333331048488617, 0.13327644765377045, -0.051760587841272354,
    ),
    # the same
    ("tanh", "double"): (
        -0.3333333333333328, 0.13333333333261296, -0.05396825380193942, 0.02186947412499997,
        -0.008862639826872543, 0.0035794385542948473, -0.0013204601842419419,
    ),
    # (-log(1 - erf(x)) / x - 2 / sqrt(pi)) / x, x <= 3.95, weighted by what an error does to erf(x)
    ("erf", "float"): (
        0.636619508266449, 0.10277680307626724, -0.01914960891008377, -0.00016632846381980926,
        0.0016726156463846564, -0.0006357442471198738, 0.00011842112871818244, -9.340087672171649e-06,
    ),
    # the same
    ("erf", "double"): (
        0.6366195131262107, 0.1027768022855391, -0.01914960832179003, -0.00016632845740927724,
        0.0016726156743389026, -0.0006357442276093343, 0.00011842112512761843, -9.340087540169948e-06,
    ),
    # (sin(x) - x) / x^3 in z = x^2, x <= pi / 4
    ("sin", "float"): (
        -0.166666641831398, 0.008332747034728527, -0.00019587505084928125,
    ),
    # (cos(x) - 1 + z / 2) / z^2 in z = x^2, x <= pi / 4
    ("cos", "float"): (
        0.0416666641831398, -0.0013888301327824593, 2.454753666825127e-05,
    ),
    # the same as for float
    ("sin", "double"): (
        -0.16666666666666666, 0.008333333333333331, -0.0001984126984126502, 2.755731921930355e-06,
        -2.5052106220031177e-08, 1.605852964560218e-10, -7.586580548102376e-13,
    ),
    # the same as for float
    ("cos", "double"): (
        0.041666666666666664, -0.0013888888888888887, 2.480158730158462e-05, -2.755731922138293e-07,
        2.087675578414919e-09, -1.1470459786421789e-11, 4.74580687427308e-14,
    ),
    # (atan(x) - x) / x^3 in z = x^2, x <= 1
    ("atan", "double"): (
        -0.3333333332858768, 0.1999999854480086, -0.14285640301773378, 0.11109629979435909,
        -0.09075436572331645, 0.07595372391118789, -0.06271508586898054, 0.04776267214035106,
        -0.030471668418459448, 0.014487212088471244, -0.0043953911289692175, 0.000624517505863203,
    ),
    # (asin(x) - x) / x^3 in z = x^2, x <= 1/2
    ("asin", "double"): (
        0.1666666666533164, 0.07500000663622444, 0.044642316624078394, 0.030398647061826715,
        0.02212078237045138, 0.019375129273582363, 0.005241609435197517, 0.029536934342384233,
    ),
    # e^(x^2) (1 - erf(x)) (1 + 2 x) in t = (x - 4) / (x + 4), t <= 0.6
    ("erfcx", "double"): (
        1.2329951186264472, -0.1396211168690453, 0.015379651906072423, 0.06809705622093935,
        -0.10103905832830537, 0.09373279772965974, -0.06633048714806042, 0.03716779875530188,
        -0.016196786822875755, 0.005031101644871646, -0.0007616405305230918, -0.00019902081154716774,
        0.00015846741657683179, -2.0502323032027466e-05, -1.7325958828632872e-05, -1.7518500440548066e-07,
    ),
}


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
