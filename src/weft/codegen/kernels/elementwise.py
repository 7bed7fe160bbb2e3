"""Emit the instructions of a kernel's body on vectors: a table with a rule per op.

A rule gets a Site, which knows the dtypes, and the operands in registers. Integers wrap; NaN, infinities and signed
zero are PyTorch's; nothing is computed in f16 or bf16, so bodies cast before and after (plan.expression).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.codegen.llvm.dtypes import HELD, Held, cast, dtype_constant
from weft.codegen.llvm.module import FunctionWriter, Register, bits_of, constant, vector
from weft.codegen.vecmath import remainder as division
from weft.codegen.vecmath.core import INFINITY, absolute, rounded, square_root
from weft.codegen.vecmath.functions import FUNCTIONS, emit_function
from weft.errors import InternalError
from weft.plan.kernels.expression import EXACT_ON_SHORT_FLOATS, Instruction


class Typed(NamedTuple):
    """A register and the dtype of what it holds."""

    register: Register
    dtype: str


@dataclass(frozen=True, slots=True)
class BodyContext:
    """Where a body is written: how many elements at once, and what makes the registers of `iota` and `take` there."""

    lanes: int
    position: Callable[[Instruction], Register]
    take: Callable[[Instruction, Register], Register] | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """Where a rule writes: the function, and the dtypes of operands and result."""

    f: FunctionWriter
    operand_dtypes: tuple[str, ...]
    dtype: str

    @property
    def held(self) -> Held:
        """How the first operand is held."""
        return HELD[self.operand_dtypes[0]]

    @property
    def is_float(self) -> bool:
        """Tell whether the first operand is a float."""
        return self.held.kind == "float"

    @property
    def is_signed(self) -> bool:
        """Tell whether the first operand is an integer with a sign."""
        return self.held.kind == "signed"

    def zero(self, x: Register) -> Register:
        """Give zero, of the type of x."""
        return constant(x.kind, 0)

    def one(self, x: Register) -> Register:
        """Give one, of the type of x."""
        return constant(x.kind, 1)


Rule = Callable[..., Register]


def arithmetic(of_floats: str, of_integers: str) -> Rule:
    """Make the rule of an operation that is one LLVM instruction on floats and one on integers."""
    return lambda site, x, y: site.f.binary(of_floats if site.is_float else of_integers, x, y)


def binary(opcode: str) -> Rule:
    """Make the rule of an operation that is one LLVM instruction."""
    return lambda site, x, y: site.f.binary(opcode, x, y)


def comparison(of_floats: str, of_signed: str, of_unsigned: str) -> Rule:
    """Make the rule of a comparison."""

    def rule(site: Site, x: Register, y: Register) -> Register:
        integers = of_signed if site.is_signed else of_unsigned
        return site.f.compare(f"fcmp {of_floats}" if site.is_float else f"icmp {integers}", x, y)

    return rule


def on_truth(opcode: str) -> Rule:
    """Make the rule of an operation on whether operands are not zero."""

    def rule(site: Site, x: Register, y: Register) -> Register:
        truths = [cast(site.f, z, dtype, "bool") for z, dtype in zip((x, y), site.operand_dtypes, strict=True)]
        return site.f.binary(opcode, *truths)

    return rule


def rounding(mode: str) -> Rule:
    """Make the rule of a rounding; integers are whole already."""
    return lambda site, x: rounded(mode)(site.f, x) if site.is_float else x


def function(name: str) -> Rule:
    """Make the rule of a function of vecmath."""
    return lambda site, *operands: emit_function(site.f, name, operands)


def negate(site: Site, x: Register) -> Register:
    """Give -x."""
    return site.f.fneg(x) if site.is_float else site.f.binary("sub", site.zero(x), x)


def absolute_value(site: Site, x: Register) -> Register:
    """Give |x|; the smallest integer stays as it is."""
    if site.is_float:
        return absolute(site.f, x)
    if not site.is_signed:
        return x
    return site.f.select(site.f.compare("icmp slt", x, site.zero(x)), negate(site, x), x)


def sign(site: Site, x: Register) -> Register:
    """Give -1, 0 or 1; 0 for what is not a number."""
    if site.held.kind == "truth":
        return x
    positive = greater(site, x, site.zero(x))
    minus = constant(x.kind, -1) if site.is_float or site.is_signed else site.zero(x)
    negative = less(site, x, site.zero(x))
    return site.f.select(positive, site.one(x), site.f.select(negative, minus, site.zero(x)))


def extreme(compare: Rule) -> Rule:
    """Make the rule of minimum or maximum; of equal numbers it gives the second, and NaN if there is one."""

    def rule(site: Site, x: Register, y: Register) -> Register:
        chosen = site.f.select(compare(site, x, y), x, y)
        return site.f.select(site.f.compare("fcmp uno", x, x), x, chosen) if site.is_float else chosen

    return rule


def logical_not(site: Site, x: Register) -> Register:
    """Tell whether x is zero."""
    truth = cast(site.f, x, site.operand_dtypes[0], "bool")
    return site.f.binary("xor", truth, site.one(truth))


def shift(opcode: str) -> Rule:
    """Make the rule of a shift; by a negative count or all bits, it gives 0, or the sign for numbers with one."""

    def rule(site: Site, x: Register, y: Register) -> Register:
        width = bits_of(x.kind)
        keeps_sign = opcode == "shr" and site.is_signed
        last = constant(x.kind, width - 1)
        inside = site.f.compare("icmp ult", y, constant(x.kind, width))
        count = site.f.select(inside, y, last)
        shifted = site.f.binary("shl" if opcode == "shl" else "ashr" if keeps_sign else "lshr", x, count)
        return shifted if keeps_sign else site.f.select(inside, shifted, site.zero(x))

    return rule


def fmod(site: Site, x: Register, y: Register) -> Register:
    """Give x - y * trunc(x / y)."""
    if site.is_float:
        return emit_function(site.f, "fmod", (x, y))
    return division.integer_quotient(site.f, x, y, signed=site.is_signed)[1]


def remainder(site: Site, x: Register, y: Register) -> Register:
    """Give x - y * floor(x / y)."""
    if site.is_float:
        return division.float_remainder(site.f, y, emit_function(site.f, "fmod", (x, y)))
    return division.integer_remainder(site.f, x, y, signed=site.is_signed)


def floor_divide(site: Site, x: Register, y: Register) -> Register:
    """Give floor(x / y)."""
    if site.is_float:
        return division.float_floor_division(site.f, x, y, emit_function(site.f, "fmod", (x, y)))
    return division.integer_floor_division(site.f, x, y, signed=site.is_signed)


def power(site: Site, x: Register, y: Register) -> Register:
    """Give x^y; of integers by squaring, and 0 for a negative exponent unless x is 1 or -1."""
    if site.is_float:
        return emit_function(site.f, "pow", (x, y))
    f, one, zero = site.f, site.one(x), site.zero(x)
    result, square = one, x
    for place in range(bits_of(x.kind) - site.is_signed):
        bit = f.compare("icmp ne", f.binary("and", y, constant(y.kind, 1 << place)), zero)
        result = f.select(bit, f.binary("mul", result, square), result)
        square = f.binary("mul", square, square)
    if not site.is_signed:
        return result
    minus = constant(x.kind, -1)
    odd = f.compare("icmp ne", f.binary("and", y, one), zero)
    of_minus = f.select(f.compare("icmp eq", x, minus), f.select(odd, minus, one), zero)
    of_negative = f.select(f.compare("icmp eq", x, one), one, of_minus)
    return f.select(f.compare("icmp slt", y, zero), of_negative, result)


less = comparison("olt", "slt", "ult")
greater = comparison("ogt", "sgt", "ugt")

EMIT: dict[str, Rule] = {
    "add": arithmetic("fadd", "add"),
    "sub": arithmetic("fsub", "sub"),
    "mul": arithmetic("fmul", "mul"),
    "div": binary("fdiv"),
    "floor_div": floor_divide,
    "remainder": remainder,
    "fmod": fmod,
    "pow": power,
    "neg": negate,
    "abs": absolute_value,
    "sign": sign,
    # x where it is not below 0, else 0: -0 and NaN stay as they are.
    "relu": lambda site, x: site.f.select(less(site, x, site.zero(x)), site.zero(x), x),
    "sqrt": lambda site, x: square_root(site.f, x),
    "rsqrt": lambda site, x: site.f.binary("fdiv", site.one(x), square_root(site.f, x)),
    "reciprocal": lambda site, x: site.f.binary("fdiv", site.one(x), x),
    "floor": rounding("floor"),
    "ceil": rounding("ceil"),
    "trunc": rounding("trunc"),
    "round": rounding("round"),
    "minimum": extreme(less),
    "maximum": extreme(greater),
    "eq": comparison("oeq", "eq", "eq"),
    "ne": comparison("une", "ne", "ne"),
    "lt": less,
    "le": comparison("ole", "sle", "ule"),
    "gt": greater,
    "ge": comparison("oge", "sge", "uge"),
    "isnan": lambda site, x: site.f.compare("fcmp uno", x, x),
    "isinf": lambda site, x: site.f.compare("fcmp oeq", absolute(site.f, x), constant(x.kind, INFINITY)),
    "logical_not": logical_not,
    "logical_and": on_truth("and"),
    "logical_or": on_truth("or"),
    "logical_xor": on_truth("xor"),
    "bitwise_not": lambda site, x: site.f.binary("xor", x, constant(x.kind, 1 if site.held.kind == "truth" else -1)),
    "bitwise_and": binary("and"),
    "bitwise_or": binary("or"),
    "bitwise_xor": binary("xor"),
    "shift_left": shift("shl"),
    "shift_right": shift("shr"),
    "select": lambda site, condition, x, y: site.f.select(condition, x, y),
    "cast": lambda site, x: cast(site.f, x, site.operand_dtypes[0], site.dtype),
    **{name: function(name) for name in FUNCTIONS if name not in ("fmod", "pow")},
}


def emit_op(f: FunctionWriter, op: str, operands: Sequence[Typed], dtype: str) -> Register:
    """Write one operation with a result of a dtype."""
    rule = EMIT.get(op)
    if rule is None:
        raise InternalError(f"no rule emits the op {op}", why="there are: " + ", ".join(EMIT))
    dtypes = tuple(operand.dtype for operand in operands)
    if op not in EXACT_ON_SHORT_FLOATS and any(HELD[short].kind == "short" for short in dtypes):
        raise InternalError(f"{op} computes on {', '.join(dtypes)}", why="f16 and bf16 must be cast to f32 before")
    site = Site(f, dtypes, dtype)
    return rule(site, *(operand.register for operand in operands))


def emit_body(
    f: FunctionWriter, body: Sequence[Instruction], inputs: Sequence[Typed], context: BodyContext
) -> list[Typed]:
    """Write a body; gives all its values, inputs first."""
    values = list(inputs)
    for instruction in body:
        register: Register
        if instruction.op == "constant":
            like = vector("i64", context.lanes)
            register = dtype_constant(instruction.dtype, instruction.attributes[0], like)
        elif instruction.op == "iota":
            register = context.position(instruction)
        elif instruction.op == "take" and context.take is not None:
            register = context.take(instruction, values[instruction.operands[0]].register)
        else:
            operands = [values[number] for number in instruction.operands]
            register = emit_op(f, instruction.op, operands, instruction.dtype)
        values.append(Typed(register, instruction.dtype))
    return values
