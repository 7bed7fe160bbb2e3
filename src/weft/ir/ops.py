"""List every operator of the Graph language as one row of a table, from which everything else is derived.

The meaning of an elementwise row is the PyTorch function of that name on operands of one shape and one dtype:
broadcasting (`expand`) and promotion (`cast`) are values of their own. NaN, signed zero and integer wrap are PyTorch's.

The arithmetic of Python numbers has a table of its own: what a number that changes between calls goes through.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from weft.errors import InternalError, UsageError
from weft.ir import attention as attended
from weft.ir import library
from weft.ir import op_types as rules
from weft.ir.graph import Place, Value
from weft.ir.library import Call
from weft.ir.op_types import ARITHMETIC, BITS, BOOLEAN, FLOATING, INTEGERS, REAL, Attributes, TypeRule
from weft.ir.recurrent import recurrent_type
from weft.ir.types import TensorType, Type


def is_integer(value: Any) -> bool:
    """Whether this is an integer; True and False are not."""
    return type(value) is int


def is_number(value: Any) -> bool:
    """Whether this is a Python number."""
    return type(value) in (bool, int, float, complex)


KINDS: dict[str, Callable[[Any], bool]] = {
    "integer": is_integer,
    "integer or None": lambda value: value is None or is_integer(value),
    "integers": lambda value: type(value) is tuple and all(map(is_integer, value)),
    "number": is_number,
    "truth": lambda value: type(value) is bool,
    "text": lambda value: type(value) is str,
    "arguments": lambda value: type(value) is tuple,
    "dtype": lambda value: isinstance(value, torch.dtype),
    "device": lambda value: isinstance(value, torch.device),
    "tensor": lambda value: isinstance(value, torch.Tensor),
    "call": lambda value: isinstance(value, Call),
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an op: its name and the kind of its value."""

    name: str
    kind: str

    def accepts(self, value: Any) -> bool:
        """Whether a value is of this attribute's kind."""
        return KINDS[self.kind](value)


def attributes(**kinds: str) -> tuple[Attribute, ...]:
    """Describe attributes by keywords: the name and, with _ for spaces, the kind."""
    return tuple(Attribute(name, kind.replace("_", " ")) for name, kind in kinds.items())


@dataclass(frozen=True, slots=True)
class Op:
    """One row: name, number of operands (None: any), rule of the result's type (None: declared), meaning."""

    name: str
    arity: int | None
    infer: TypeRule | None
    meaning: str
    attributes: tuple[Attribute, ...] = ()
    commutative: bool = False
    elementwise: bool = False
    effect: str | None = None  # "random": draws from or sets a generator; "order": must keep its place
    cycles: float = math.nan  # of an elementwise op: about what a vector of results takes of one core
    alike: bool = False  # of an elementwise op: one number gives the same alone as among others, in PyTorch's loops too

    def __post_init__(self) -> None:
        if self.elementwise and math.isnan(self.cycles):
            raise InternalError(f"the row of {self.name} in ir/ops.py does not say how many cycles it takes")


def table(*rows: Op) -> dict[str, Op]:
    """Collect rows by name; a name given twice is a mistake."""
    found: dict[str, Op] = {}
    for row in rows:
        if row.name in found:
            raise InternalError(f"two rows for the op {row.name}")
        found[row.name] = row
    return found


def exact(name: str, arity: int, infer: TypeRule, meaning: str, cycles: float) -> Op:
    """Make an elementwise row whose results no loop rounds in a way of its own: they are exact, or rounded once."""
    return Op(name, arity, infer, meaning, elementwise=True, cycles=cycles, alike=True)


def rounded(name: str, arity: int, infer: TypeRule, meaning: str, cycles: float) -> Op:
    """Make an elementwise row whose last bits depend on the loop, or on the library, that computes it."""
    return Op(name, arity, infer, meaning, cycles=cycles, elementwise=True)


def commutative(row: Op) -> Op:
    """Make the row of an op whose two operands may change places."""
    return replace(row, commutative=True)


SIMPLE = 0.6
"""Cycles of an op that is an instruction or two on a vector."""


float_type = rules.same_type(FLOATING)
number_type = rules.same_type(ARITHMETIC)
integer_type = rules.same_type(INTEGERS)
bits_type = rules.same_type(BITS)
real_type = rules.same_type(REAL)
compare_type = rules.truth_type(REAL)
question_type = rules.truth_type(FLOATING)
SPREAD = attributes(dimensions="integers", keep="truth")
PLACE = attributes(dimension="integer_or_None", keep="truth")
ALONG = attributes(dimension="integer")
CONVOLUTION = attributes(stride="integers", padding="integers", dilation="integers", groups="integer")
CONVOLUTION_GRADIENT = (*attributes(shape="integers"), *CONVOLUTION)
ATTENTION = attributes(scale="number", causal="truth", zeros="truth", hidden="number")
ATTENTION_GRADIENT = attributes(scale="number", causal="truth", zeros="truth")
WINDOW = attributes(kernel_size="integers", stride="integers", padding="integers")
MAX_POOL = (*WINDOW, *attributes(dilation="integers", ceil_mode="truth"))
AVERAGE_POOL = (
    *WINDOW,
    *attributes(ceil_mode="truth", count_include_pad="truth", divisor_override="integer_or_None"),
)

OPS = table(
    # What is not computed by Weft's own code.
    Op("constant", 0, None, "a tensor known in advance; nobody changes it", attributes(tensor="tensor")),
    Op(
        "number",
        None,
        None,
        "Python arithmetic: `operator` of `arguments`, which are operands or numbers",
        attributes(operator="text", arguments="arguments"),
    ),
    Op("scalar", 1, rules.scalar_type, "a Python number as a tensor of no dimensions", attributes(dtype="dtype")),
    Op("library", None, None, "what a PyTorch operator that writes nothing gives", attributes(call="call")),
    Op(
        "update",
        None,
        None,
        "what a PyTorch operator that writes gives when run on private copies: its fresh results, then each new base",
        attributes(call="call"),
    ),
    Op("item", 1, None, "one of several results", attributes(index="integer")),
    Op("random_state", 0, None, "the state of the CPU's default generator now", effect="random"),
    Op("set_random_state", 1, rules.no_type, "gives the CPU's default generator a state", effect="random"),
    # One operand, element by element.
    exact("neg", 1, number_type, "-x", SIMPLE),
    exact("abs", 1, number_type, "x without its sign", SIMPLE),
    exact("sign", 1, number_type, "-1, 0 or 1", SIMPLE),
    exact("floor", 1, float_type, "the largest whole number not above x", SIMPLE),
    exact("ceil", 1, float_type, "the smallest whole number not below x", SIMPLE),
    exact("trunc", 1, float_type, "the whole part of x", SIMPLE),
    exact("round", 1, float_type, "the nearest whole number, halves to even", SIMPLE),
    rounded("sqrt", 1, float_type, "square root", 6.0),
    rounded("rsqrt", 1, float_type, "1 / sqrt(x)", 10.0),
    rounded("reciprocal", 1, float_type, "1 / x", 5.0),
    rounded("exp", 1, float_type, "e to the power x", 9.0),
    rounded("exp2", 1, float_type, "2 to the power x", 9.0),
    rounded("expm1", 1, float_type, "exp(x) - 1, exact near 0", 14.0),
    rounded("log", 1, float_type, "natural logarithm", 11.0),
    rounded("log2", 1, float_type, "logarithm to the base 2", 11.0),
    rounded("log10", 1, float_type, "logarithm to the base 10", 12.0),
    rounded("log1p", 1, float_type, "log(1 + x), exact near 0", 16.0),
    rounded("sin", 1, float_type, "sine", 16.0),
    rounded("cos", 1, float_type, "cosine", 16.0),
    rounded("tan", 1, float_type, "tangent", 30.0),
    rounded("sinh", 1, float_type, "hyperbolic sine", 24.0),
    rounded("cosh", 1, float_type, "hyperbolic cosine", 24.0),
    rounded("tanh", 1, float_type, "hyperbolic tangent", 16.0),
    rounded("asin", 1, float_type, "inverse sine", 30.0),
    rounded("acos", 1, float_type, "inverse cosine", 30.0),
    rounded("atan", 1, float_type, "inverse tangent", 30.0),
    rounded("asinh", 1, float_type, "inverse hyperbolic sine", 30.0),
    rounded("acosh", 1, float_type, "inverse hyperbolic cosine", 30.0),
    rounded("atanh", 1, float_type, "inverse hyperbolic tangent", 30.0),
    rounded("erf", 1, float_type, "the error function", 16.0),
    rounded("erfc", 1, float_type, "1 - erf(x), exact far out", 30.0),
    rounded("sigmoid", 1, float_type, "1 / (1 + exp(-x))", 14.0),
    exact("relu", 1, number_type, "max(x, 0)", SIMPLE),
    exact("isnan", 1, question_type, "whether x is not a number", SIMPLE),
    exact("isinf", 1, question_type, "whether x is infinite", SIMPLE),
    exact("logical_not", 1, compare_type, "whether x is zero", SIMPLE),
    exact("bitwise_not", 1, bits_type, "every bit flipped", SIMPLE),
    # Two operands and more, element by element.
    commutative(exact("add", 2, number_type, "x + y", SIMPLE)),
    exact("sub", 2, number_type, "x - y", SIMPLE),
    commutative(exact("mul", 2, number_type, "x * y", SIMPLE)),
    exact("div", 2, float_type, "x / y", 5.0),
    rounded("floor_div", 2, number_type, "floor(x / y)", 12.0),
    rounded("remainder", 2, number_type, "x - y * floor(x / y), with the sign of y", 10.0),
    rounded("fmod", 2, number_type, "x - y * trunc(x / y), with the sign of x", 10.0),
    rounded("pow", 2, number_type, "x to the power y", 30.0),
    rounded("atan2", 2, float_type, "the angle of the point (y, x)", 36.0),
    commutative(exact("minimum", 2, real_type, "the smaller of both; NaN if either is", SIMPLE)),
    commutative(exact("maximum", 2, real_type, "the larger of both; NaN if either is", SIMPLE)),
    commutative(exact("eq", 2, compare_type, "x == y", SIMPLE)),
    commutative(exact("ne", 2, compare_type, "x != y", SIMPLE)),
    exact("lt", 2, compare_type, "x < y", SIMPLE),
    exact("le", 2, compare_type, "x <= y", SIMPLE),
    exact("gt", 2, compare_type, "x > y", SIMPLE),
    exact("ge", 2, compare_type, "x >= y", SIMPLE),
    commutative(exact("logical_and", 2, compare_type, "whether neither is zero", SIMPLE)),
    commutative(exact("logical_or", 2, compare_type, "whether not both are zero", SIMPLE)),
    commutative(exact("logical_xor", 2, compare_type, "whether exactly one is zero", SIMPLE)),
    commutative(exact("bitwise_and", 2, bits_type, "bits set in both", SIMPLE)),
    commutative(exact("bitwise_or", 2, bits_type, "bits set in either", SIMPLE)),
    commutative(exact("bitwise_xor", 2, bits_type, "bits set in exactly one", SIMPLE)),
    rounded("shift_left", 2, integer_type, "x * 2 ** y", SIMPLE),
    rounded("shift_right", 2, integer_type, "floor(x / 2 ** y)", SIMPLE),
    exact("select", 3, rules.select_type, "the second operand where the first is true, else the third", SIMPLE),
    Op(
        "cast",
        1,
        rules.cast_type,
        "the same numbers in another dtype",
        attributes(dtype="dtype"),
        elementwise=True,
        cycles=SIMPLE,
        alike=True,
    ),
    Op(
        "iota",
        0,
        rules.iota_type,
        "each element's position along `dimension`",
        attributes(shape="integers", dimension="integer", dtype="dtype"),
    ),
    # Reductions: over `dimensions`, which may be none or all; `keep` leaves them with size 1.
    Op("sum", 1, rules.reduction_type(ARITHMETIC, of_nothing=True), "the sum, in the operand's dtype", SPREAD),
    Op("prod", 1, rules.reduction_type(ARITHMETIC, of_nothing=True), "the product, in the operand's dtype", SPREAD),
    Op("min", 1, rules.reduction_type(REAL, of_nothing=False), "the smallest; NaN if any is", SPREAD),
    Op("max", 1, rules.reduction_type(REAL, of_nothing=False), "the largest; NaN if any is", SPREAD),
    Op("any", 1, rules.reduction_type(BOOLEAN, of_nothing=True), "whether any is true", SPREAD),
    Op("all", 1, rules.reduction_type(BOOLEAN, of_nothing=True), "whether all are true", SPREAD),
    Op("argmax", 1, rules.position_type, "where the largest is; in all elements if `dimension` is None", PLACE),
    Op("argmin", 1, rules.position_type, "where the smallest is; in all elements if `dimension` is None", PLACE),
    Op(
        "top_places",
        1,
        rules.top_places_type,
        "where the `count` largest or smallest along the last dimension are, as torch.topk gives them",
        attributes(count="integer", largest="truth", sorted="truth"),
    ),
    # Moving elements.
    Op("reshape", 1, rules.reshape_type, "the same elements, row by row", attributes(shape="integers")),
    Op("permute", 1, rules.permute_type, "dimensions in another order", attributes(order="integers")),
    Op("expand", 1, rules.expand_type, "dimensions of size 1 and new ones repeated", attributes(shape="integers")),
    Op(
        "slice",
        1,
        rules.slice_type,
        "every step-th element from start to before stop, in each dimension",
        attributes(start="integers", stop="integers", step="integers"),
    ),
    Op(
        "pad",
        1,
        rules.pad_type,
        "low more elements before and high after, in each dimension, all equal to value",
        attributes(low="integers", high="integers", value="number"),
    ),
    Op("concat", None, rules.concat_type, "operands one after the other along `dimension`", ALONG),
    Op("reverse", 1, rules.reverse_type, "dimensions run through backwards", attributes(dimensions="integers")),
    Op("gather", 2, rules.gather_type, "x[..., index[i, j, k], ...] at each i, j, k of the index", ALONG),
    Op("scatter", 3, rules.scatter_type, "x with x[..., index[i, j, k], ...] replaced by source[i, j, k]", ALONG),
    Op("scatter_add", 3, rules.scatter_type, "x with source[i, j, k] added to x[..., index[i, j, k], ...]", ALONG),
    Op("scatter_mul", 3, rules.scatter_type, "as scatter_add, multiplied by the source instead", ALONG),
    Op("scatter_min", 3, rules.scatter_type, "as scatter_add, the smaller of both instead; NaN if either is", ALONG),
    Op("scatter_max", 3, rules.scatter_type, "as scatter_add, the larger of both instead; NaN if either is", ALONG),
    Op("take", 2, rules.take_type, "slices of x at the places of a list", ALONG),
    # Products, attention, convolutions, pooling.
    Op("matmul", 2, rules.matmul_type, "[..., m, k] times [..., k, n], leading dimensions in parallel"),
    Op(
        "attention",
        None,
        attended.attention_type,
        "softmax(query key' * scale, masked) value; and of each row the logarithm of what softmax divides by",
        ATTENTION,
    ),
    Op(
        "attention_gradient",
        None,
        attended.attention_gradient_type,
        "of output gradient, query, key, value, the logarithms, and each row's sum of gradient times output; and masks",
        ATTENTION_GRADIENT,
    ),
    Op(
        "recurrent",
        None,
        recurrent_type,
        "the states of a recurrent layer, from what inputs give to its gates, and the last state",
        attributes(cell="text", reverse="truth"),
    ),
    Op("convolution", 2, rules.convolution_type, "of input and weight, without bias", CONVOLUTION),
    Op(
        "convolution_input_gradient",
        2,
        rules.convolution_input_gradient_type,
        "of output gradient and weight, for an input of `shape`",
        CONVOLUTION_GRADIENT,
    ),
    Op(
        "convolution_weight_gradient",
        2,
        rules.convolution_weight_gradient_type,
        "of input and output gradient, for a weight of `shape`",
        CONVOLUTION_GRADIENT,
    ),
    Op("max_pool", 1, rules.max_pool_type, "the largest of each window, and its index in the plane", MAX_POOL),
    Op(
        "max_pool_gradient",
        3,
        rules.max_pool_gradient_type,
        "of output gradient, input and the indices of max_pool",
        MAX_POOL,
    ),
    Op("average_pool", 1, rules.average_pool_type, "the mean of each window", AVERAGE_POOL),
    Op(
        "average_pool_gradient",
        2,
        rules.average_pool_gradient_type,
        "of output gradient and input",
        AVERAGE_POOL,
    ),
)


def infer_type(op: str, operands: tuple[Value, ...], given: Attributes) -> Type:
    """The type that an op's rule gives; UsageError with the op's name where operands or attributes do not fit."""
    row = OPS[op]
    if row.infer is None:
        raise UsageError(f"{op}: the type of its result must be declared")
    if row.arity is not None and len(operands) != row.arity:
        raise UsageError(f"{op} takes {row.arity} operands, not {len(operands)}")
    try:
        return row.infer([operand.type for operand in operands], given)
    except UsageError as error:
        raise UsageError(f"{op}: {error.fact}", fix=error.fix) from None


def build(op: str, *operands: Value, place: Place | None = None, type: Type | None = None, **given: Any) -> Value:  # noqa: A002 - the field's name
    """Make a value with the type of the op's rule, or with `type` where the rule gives none or the layout differs.

    >>> total = build("sum", build("add", x, y), dimensions=(0,), keep=False)
    """
    declared = infer_type(op, operands, given) if type is None else type
    return Value(op, operands, declared, MappingProxyType(given), place)


def effect_of(value: Value) -> str | None:
    """What computing a value does besides giving its result: "random", "order", or nothing (None).

    Values with an effect keep their order among each other and are kept when nobody uses them.
    """
    call = value.attributes.get("call")
    if call is None:
        return OPS[value.op].effect
    if library.is_random(call.target):
        return "random"
    return "order" if library.has_effect(call.target) else None


def may_refuse(value: Value) -> bool:
    """Whether computing a value may raise because of data, as an index out of range does."""
    if value.op not in ("library", "update"):
        return False
    first = value.operands[0].type if value.operands else None
    of_floats = isinstance(first, TensorType) and first.dtype.is_floating_point
    return library.may_refuse(value.attributes["call"].target, of_floats=of_floats)


def refusal_of(value: Value) -> Hashable:
    """What makes a value refuse its data: the same where one refuses whatever the other does, with the same error.

    None for a value that refuses nothing.
    """
    if not may_refuse(value):
        return None
    call: library.Call = value.attributes["call"]
    packet, given = library.packet_name(call.target).removesuffix("_"), call.arguments
    if packet not in library.AT_PLACES or len(given) < 3 or not isinstance(given[2], library.Operand):
        return value
    kind = value.operands[given[0].index].type if isinstance(given[0], library.Operand) else value.type
    along = given[1]
    if not isinstance(kind, TensorType) or not isinstance(along, int) or not kind.rank:
        return value
    return value.operands[given[2].index], kind.shape[along]


@dataclass(frozen=True, slots=True)
class NumberOperator:
    """One operator on Python numbers: how many it takes, and the function."""

    arity: int
    function: Callable[..., Any]


NUMBER_OPERATORS: dict[str, NumberOperator] = {
    "add": NumberOperator(2, operator.add),
    "sub": NumberOperator(2, operator.sub),
    "mul": NumberOperator(2, operator.mul),
    "truediv": NumberOperator(2, operator.truediv),
    "floordiv": NumberOperator(2, operator.floordiv),
    "mod": NumberOperator(2, operator.mod),
    "pow": NumberOperator(2, operator.pow),
    "neg": NumberOperator(1, operator.neg),
    "abs": NumberOperator(1, operator.abs),
    "int": NumberOperator(1, int),
    "float": NumberOperator(1, float),
    "bool": NumberOperator(1, bool),
}
