"""Lift operators that compute element by element.

Operands are promoted as PyTorch promotes them; half precisions compute in float32 and round once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.checks import check_data
from weft.trace.lift.expression import Expression, Term, broadcast_shape, wrapped

Formula = Callable[..., Expression]


def pointwise(formula: Formula, *operands: str, numbers: tuple[str, ...] = (), floating: bool = False) -> Rule:
    """Make a rule of a formula: first the named operands, promoted to one dtype, then the named numbers.

    With `floating` integer operands become the default float dtype.
    """

    def rule(arguments: Arguments) -> Expression:
        terms: list[Term] = list(arguments.promoted(*operands, floating=floating))
        dtype = terms[0].dtype if isinstance(terms[0], Expression) else torch.float32
        terms += [arguments.number(name, dtype) for name in numbers]
        return formula(*terms)

    return rule


def unary(op: str, *, floating: bool = True) -> Rule:
    """Make the rule of an operator that is one op of one operand."""
    return pointwise(lambda x: x.apply(op), "self", floating=floating)


def binary(op: str, *, floating: bool = False) -> Rule:
    """Make the rule of an operator that is one op of two operands."""
    return pointwise(lambda x, y: x.apply(op, y), "self", "other", floating=floating)


def rounding(op: str) -> Rule:
    """Make the rule of an operator that leaves integers as they are."""
    return pointwise(lambda x: x.apply(op) if x.dtype.is_floating_point else x, "self")


def logical(op: str) -> Rule:
    """Make the rule of an operator on what is true of its operands."""

    def rule(arguments: Arguments) -> Expression:
        first, *others = (arguments.tensor(name).truth() for name in ("self", "other") if arguments.has(name))
        return first.apply(op, *others)

    return rule


def scaled(term: Expression, factor: Term) -> Expression:
    """A term times alpha; alpha is 1 nearly always."""
    return term if type(factor) is int and factor == 1 else term * factor


def add(x: Expression, y: Expression, alpha: Term) -> Expression:
    """Compute x + alpha * y; of truth values: whether any is true."""
    if x.dtype is torch.bool:
        return x.apply("logical_or", y)
    return x + scaled(y, alpha)


def multiply(x: Expression, y: Expression) -> Expression:
    """Compute x * y; of truth values: whether both are true."""
    return x.apply("logical_and" if x.dtype is torch.bool else "mul", y)


def whole_division(op: str) -> Rule:
    """Make the rule of a division with a remainder."""

    def rule(arguments: Arguments) -> Expression:
        x, y = arguments.promoted("self", "other")
        refuse_zero(arguments, x, y)
        return x.apply(op, y)

    return rule


def refuse_zero(arguments: Arguments, x: Expression, y: Expression) -> None:
    """Raise what PyTorch raises where integers are divided by zero."""
    number = arguments["other"]
    if y.dtype.is_floating_point or 0 in broadcast_shape(x.shape, y.shape):
        return
    if isinstance(number, bool | int | float):
        arguments.require(wrapped(int(number), y.dtype) != 0, "by zero")
    else:
        check_data(arguments, y.apply("eq", 0), "ZeroDivisionError")


def divide(arguments: Arguments) -> Expression:
    """Compute x / y, or its whole part."""
    mode = arguments.literal("rounding_mode") if arguments.has("rounding_mode") else None
    x, y = arguments.promoted("self", "other", floating=mode is None)
    if mode is not None:
        refuse_zero(arguments, x, y)
    if mode == "floor":
        return x.apply("floor_div", y)
    if mode == "trunc" and not x.dtype.is_floating_point:
        return (x - x.apply("fmod", y)).apply("floor_div", y)
    return x / y if mode is None else (x / y).apply("trunc")


def power(arguments: Arguments) -> Expression:
    """Raise x to the power of a number; PyTorch's kernels single out these exponents too."""
    [x] = arguments.promoted("self")
    arguments.promoted("self", "exponent")  # refuses what does not promote
    exponent = arguments["exponent"]
    arguments.require(isinstance(exponent, int | float), "with an exponent that changes")
    if arguments.result().dtype.is_floating_point and not x.dtype.is_floating_point:
        x = x.cast(torch.get_default_dtype())
    if not x.dtype.is_floating_point:
        arguments.require(exponent >= 0, "of integers to a negative power")
        exponent = int(exponent)
    formula = POWERS.get(exponent)
    if formula is not None and (x.dtype.is_floating_point or exponent in (1, 2, 3)):
        return formula(x)
    return x.apply("pow", exponent)


POWERS: dict[float, Callable[[Expression], Expression]] = {
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: lambda x: x.apply("sqrt"),
    -0.5: lambda x: x.apply("rsqrt"),
    -1: lambda x: x.apply("reciprocal"),
    -2: lambda x: (x * x).apply("reciprocal"),
}


def where(arguments: Arguments) -> Expression:
    """One operand where the condition holds, else the other."""
    yes, no = arguments.promoted("self", "other")
    return arguments.tensor("condition").truth().choose(yes, no)


def at_least(x: Expression, bound: Term) -> Expression:
    """Raise x to a bound; of two zeros x stays, as in PyTorch, where `maximum` leaves it open."""
    is_zero = not isinstance(bound, Expression) and bound == 0
    return x.apply("lt", bound).choose(bound, x) if is_zero else x.apply("maximum", bound)


def at_most(x: Expression, bound: Term) -> Expression:
    """Lower x to a bound; of two zeros x stays."""
    is_zero = not isinstance(bound, Expression) and bound == 0
    return x.apply("gt", bound).choose(bound, x) if is_zero else x.apply("minimum", bound)


def inside(x: Expression, low: Term, high: Term) -> Expression:
    """Bring x within bounds."""
    return at_most(at_least(x, low), high)


def clamp(arguments: Arguments) -> Expression:
    """Bring x within bounds that may be absent; where they cross, the upper one counts."""
    names = [name for name in ("min", "max") if arguments.has(name) and arguments[name] is not None]
    x, *promoted = arguments.promoted("self", *names)
    for name, bound in zip(names, promoted, strict=True):
        given = arguments[name]
        is_number = isinstance(given, bool | int | float)
        x = (at_least if name == "min" else at_most)(x, given if is_number else bound)
    return x


def masked_fill(arguments: Arguments) -> Expression:
    """Another value where the mask holds; the dtype is the tensor's."""
    x = arguments.tensor("self")
    value = arguments.number("value", x.dtype)
    return arguments.tensor("mask").truth().choose(value, x)


def convert(arguments: Arguments) -> Expression:
    """The same numbers in another dtype."""
    return arguments.tensor("self").cast(arguments.result().dtype)


def copy(arguments: Arguments) -> Expression:
    """Another tensor's numbers in this one's place."""
    return arguments.tensor("src")


def fill(arguments: Arguments) -> Expression:
    """One number in this tensor's place."""
    kind = arguments.result()
    value = arguments.number("value", kind.dtype)
    return value if isinstance(value, Expression) else arguments.full(value, kind.dtype, kind.shape)


def zero(arguments: Arguments) -> Expression:
    """Zeros in this tensor's place."""
    kind = arguments.result()
    return arguments.full(0, kind.dtype, kind.shape)


def sign_bit(arguments: Arguments) -> Expression:
    """Whether a number is negative."""
    x = arguments.tensor("self")
    arguments.require(not x.dtype.is_floating_point, "tells the zeros apart")
    return x.truth().apply("logical_and", x.truth().apply("logical_not")) if x.dtype is torch.bool else x.apply("lt", 0)


def replace_special(x: Expression, nan: float, highest: float, lowest: float) -> Expression:
    """Put numbers in the place of NaN and the infinities."""
    x = x.apply("eq", math.inf).choose(highest, x)
    x = x.apply("eq", -math.inf).choose(lowest, x)
    return x.apply("isnan").choose(nan, x)


def nan_to_num(arguments: Arguments) -> Expression:
    """Numbers in the place of NaN and the infinities: by default 0 and the dtype's limits."""
    x = arguments.tensor("self")
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(x.dtype)
    defaults = {"nan": 0.0, "posinf": limits.max, "neginf": limits.min}
    given = {name: arguments.literal(name) for name in defaults}
    return replace_special(x, *(defaults[name] if number is None else number for name, number in given.items()))


def hypotenuse(x: Expression, y: Expression) -> Expression:
    """sqrt(x * x + y * y) without overflow in between."""
    high = x.apply("abs").apply("maximum", y.apply("abs"))
    low = x.apply("abs").apply("minimum", y.apply("abs"))
    ratio = high.apply("eq", 0).choose(0.0, low / high)
    found = high * (1 + ratio * ratio).apply("sqrt")
    return x.apply("isinf").apply("logical_or", y.apply("isinf")).choose(math.inf, found)


def times_log(op: str) -> Formula:
    """Make x * log(y), 0 where x is 0 unless y is NaN."""

    def formula(x: Expression, y: Expression) -> Expression:
        found = x.apply("eq", 0).choose(0.0, x * y.apply(op))
        return y.apply("isnan").choose(math.nan, found)

    return formula


def log_of_sum(grow: str, logarithm: Callable[[Expression], Expression]) -> Formula:
    """Make the logarithm of a sum of powers, from the larger one down; infinities of one sign stay."""

    def formula(x: Expression, y: Expression) -> Expression:
        found = x.apply("maximum", y) + logarithm((-(x - y).apply("abs")).apply(grow))
        endless = x.apply("isinf").apply("logical_and", x.apply("eq", y))
        return endless.choose(x, found)

    return formula


def sinc(x: Expression) -> Expression:
    """sin(pi * x) / (pi * x), 1 at 0."""
    turned = x * math.pi
    return x.apply("eq", 0).choose(1, turned.apply("sin") / turned)


def entropy(x: Expression) -> Expression:
    """-x * log(x), 0 at 0, minus infinity below."""
    inner = x.apply("gt", 0).choose(-x * x.apply("log"), x.apply("eq", 0).choose(x.like(0), -math.inf))
    return x.apply("ne", x).choose(x, inner)


def round_decimals(arguments: Arguments) -> Expression:
    """Rounded to a number of decimals."""
    [x] = arguments.promoted("self")
    decimals = arguments.literal("decimals")
    arguments.require(x.dtype.is_floating_point, "of integers")
    scale = float(10 ** abs(decimals))
    if decimals >= 0:
        return (x * scale).apply("round") / scale
    return (x / scale).apply("round") * scale


def lerp(start: Expression, end: Expression, weight: Term) -> Expression:
    """A number on the way from start to end, exact at both ends."""
    gap = end - start
    if not isinstance(weight, Expression):
        return start + weight * gap if abs(weight) < 0.5 else end - gap * (1 - weight)
    return weight.apply("abs").apply("lt", 0.5).choose(start + weight * gap, end - gap * (1 - weight))


SAME = ("floor", "ceil", "trunc", "round")
FLOATS = (
    *("sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
    *("erf", "erfc", "sigmoid"),
)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
VARIANTS = ("Tensor", "Scalar")
ADDENDS = pointwise(add, "self", "other", numbers=("alpha",))
DIFFERENCE = pointwise(lambda x, y, alpha: x - scaled(y, alpha), "self", "other", numbers=("alpha",))
REVERSED = pointwise(lambda x, y, alpha: y - scaled(x, alpha), "self", "other", numbers=("alpha",))
ADDCMUL = pointwise(lambda x, y, z, value: x + scaled(y, value) * z, "self", "tensor1", "tensor2", numbers=("value",))
ADDCDIV = pointwise(lambda x, y, z, value: x + scaled(y, value) / z, "self", "tensor1", "tensor2", numbers=("value",))

ELEMENTWISE: Rules = {
    **{f"aten.{name}.default": rounding(name) for name in SAME},
    **{f"aten.{name}.default": unary(name) for name in FLOATS},
    **{f"aten.{name}.{variant}": binary(name) for name in COMPARISONS for variant in VARIANTS},
    "aten.neg.default": unary("neg", floating=False),
    "aten.abs.default": unary("abs", floating=False),
    "aten.sign.default": unary("sign", floating=False),
    "aten.sgn.default": unary("sign", floating=False),
    "aten.positive.default": lambda arguments: arguments.tensor("self"),
    "aten.isnan.default": pointwise(lambda x: x.apply("ne", x), "self"),
    "aten.isinf.default": unary("isinf"),
    "aten.isposinf.default": pointwise(lambda x: x.apply("eq", math.inf), "self", floating=True),
    "aten.isneginf.default": pointwise(lambda x: x.apply("eq", -math.inf), "self", floating=True),
    "aten.signbit.default": sign_bit,
    "aten.nan_to_num.default": nan_to_num,
    "aten.logical_not.default": logical("logical_not"),
    "aten.logical_and.default": logical("logical_and"),
    "aten.logical_or.default": logical("logical_or"),
    "aten.logical_xor.default": logical("logical_xor"),
    "aten.bitwise_not.default": unary("bitwise_not", floating=False),
    **{f"aten.bitwise_{name}.{kind}": binary(f"bitwise_{name}") for name in ("and", "or", "xor") for kind in VARIANTS},
    "aten.add.Tensor": ADDENDS,
    "aten.add.Scalar": ADDENDS,
    "aten.sub.Tensor": DIFFERENCE,
    "aten.sub.Scalar": DIFFERENCE,
    "aten.rsub.Tensor": REVERSED,
    "aten.rsub.Scalar": REVERSED,
    "aten.mul.Tensor": pointwise(multiply, "self", "other"),
    "aten.mul.Scalar": pointwise(multiply, "self", "other"),
    "aten.div.Tensor": divide,
    "aten.div.Scalar": divide,
    "aten.div.Tensor_mode": divide,
    "aten.div.Scalar_mode": divide,
    "aten.floor_divide.default": whole_division("floor_div"),
    "aten.floor_divide.Scalar": whole_division("floor_div"),
    "aten.remainder.Tensor": whole_division("remainder"),
    "aten.remainder.Scalar": whole_division("remainder"),
    "aten.fmod.Tensor": whole_division("fmod"),
    "aten.fmod.Scalar": whole_division("fmod"),
    "aten.pow.Tensor_Scalar": power,
    "aten.pow.Tensor_Tensor": pointwise(lambda x, y: x.apply("pow", y), "self", "exponent"),
    "aten.pow.Scalar": pointwise(lambda x, y: x.apply("pow", y), "self", "exponent"),
    "aten.atan2.default": binary("atan2", floating=True),
    "aten.minimum.default": binary("minimum"),
    "aten.maximum.default": binary("maximum"),
    "aten.fmin.default": pointwise(
        lambda x, y: x.apply("ne", x).apply("logical_or", y.apply("lt", x)).choose(y, x), "self", "other"
    ),
    "aten.fmax.default": pointwise(
        lambda x, y: x.apply("ne", x).apply("logical_or", x.apply("lt", y)).choose(y, x), "self", "other"
    ),
    "aten.hypot.default": pointwise(hypotenuse, "self", "other"),
    "aten.xlogy.Tensor": pointwise(times_log("log"), "self", "other", floating=True),
    "aten.xlogy.Scalar_Self": pointwise(times_log("log"), "self", "other", floating=True),
    "aten.xlogy.Scalar_Other": pointwise(times_log("log"), "self", "other", floating=True),
    "aten.special_xlog1py.default": pointwise(times_log("log1p"), "self", "other", floating=True),
    "aten.heaviside.default": pointwise(
        lambda x, y: x.apply("eq", 0).choose(y, x.apply("gt", 0).choose(y.like(1), 0)), "self", "values"
    ),
    "aten.logaddexp.default": pointwise(log_of_sum("exp", lambda x: x.apply("log1p")), "self", "other", floating=True),
    "aten.logaddexp2.default": pointwise(
        log_of_sum("exp2", lambda x: x.apply("log1p") * (1 / math.log(2))), "self", "other", floating=True
    ),
    "aten.sinc.default": pointwise(sinc, "self", floating=True),
    "aten.special_entr.default": pointwise(entropy, "self", floating=True),
    "aten.round.decimals": round_decimals,
    "aten.ldexp.Tensor": pointwise(lambda x, y: x * y.apply("exp2"), "self", "other", floating=True),
    **{f"aten.bitwise_{side}_shift.Tensor": binary(f"shift_{side}") for side in ("left", "right")},
    "aten.deg2rad.default": pointwise(lambda x: x * (math.pi / 180), "self", floating=True),
    "aten.rad2deg.default": pointwise(lambda x: x * (180 / math.pi), "self", floating=True),
    "aten.frac.default": pointwise(lambda x: x - x.apply("trunc"), "self"),
    "aten.addcmul.default": ADDCMUL,
    "aten.addcdiv.default": ADDCDIV,
    "aten.lerp.Scalar": pointwise(lerp, "self", "end", numbers=("weight",)),
    "aten.lerp.Tensor": pointwise(lerp, "self", "end", "weight"),
    "aten.where.self": where,
    "aten.where.ScalarSelf": where,
    "aten.where.ScalarOther": where,
    "aten.where.Scalar": where,
    "aten.clamp.default": clamp,
    "aten.clamp.Tensor": clamp,
    "aten.clamp_min.default": clamp,
    "aten.clamp_min.Tensor": clamp,
    "aten.clamp_max.default": clamp,
    "aten.clamp_max.Tensor": clamp,
    "aten.masked_fill.Scalar": masked_fill,
    "aten.masked_fill.Tensor": masked_fill,
    "aten._to_copy.default": convert,
    "aten.clone.default": convert,
    "aten.lift_fresh_copy.default": convert,
    "aten.copy.default": copy,
    "aten.fill.Scalar": fill,
    "aten.fill.Tensor": fill,
    "aten.zero.default": zero,
}
