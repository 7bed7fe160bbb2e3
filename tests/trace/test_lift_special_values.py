"""Lifted elementwise operators treat NaN, infinities, both zeros and the ends of integers as eager PyTorch does."""

import contextlib
import itertools
import math
from typing import Any

import pytest
import torch
from tests.conformance.compare import form_difference, same_specials, within_native_bound
from tests.trace.lift_checks import inputs_of, remaining, traced_call

from weft.errors import UsageError
from weft.ir import library
from weft.ir.graph import Value
from weft.ir.interpreter import interpret
from weft.ir.ops import OPS, build
from weft.ir.types import contiguous
from weft.trace.lift.lift import lift
from weft.trace.lift.torch_ops import RULES

NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 6.0, 25.0, -20.0, 1e-30, 3e38]
WHOLE = [0, 1, -1, 2, 5, -7, 100, -128, 127]
# Eager's own kernels disagree there: one element gives infinity, a vector NaN; vectors of 256 bits lose the sign of 0.
UNDECIDED = {"gelu": (math.inf, 3e38, 0.0, -20.0)}

UNARY = {
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "erf", "erfc", "exp"),
    *("exp2", "expm1", "floor", "frac", "gelu", "hardsigmoid", "hardswish", "hardtanh", "isinf", "isnan", "isneginf"),
    *("isposinf", "leaky_relu", "log", "log10", "log1p", "log2", "logical_not", "logit", "mish", "nan_to_num", "neg"),
    *("positive", "rad2deg", "reciprocal", "relu", "relu6", "round", "rsqrt", "sgn", "sigmoid", "sign", "silu", "sin"),
    *("sinc", "sinh", "softplus", "softshrink", "hardshrink", "special_entr", "sqrt", "tan", "tanh", "trunc", "elu"),
    *("celu", "log_sigmoid_forward"),
}
BINARY = {
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor"),
    *("gt.Tensor", "ge.Tensor", "minimum.default", "maximum.default", "fmin.default", "fmax.default"),
    *("logical_and.default", "logical_or.default", "logical_xor.default", "atan2.default", "hypot.default"),
    *("logaddexp.default", "xlogy.Tensor", "heaviside.default", "remainder.Tensor", "fmod.Tensor"),
    *("floor_divide.default", "pow.Tensor_Tensor", "tanh_backward.default", "sigmoid_backward.default"),
    *("silu_backward.default", "gelu_backward.default", "mish_backward.default"),
    *("hardsigmoid_backward.default", "hardswish_backward.default", "rsub.Tensor", "logaddexp2.default"),
}


def of_rows(arity: int) -> set[str]:
    """The operators of that name that a row of the op table is lifted from, where it takes floats."""
    x = Value("input", (), contiguous(torch.float32, (2,)))
    names = set()
    for row in OPS.values():
        if not row.elementwise or row.attributes or row.arity != arity:
            continue
        with contextlib.suppress(UsageError):
            build(row.name, *(x,) * arity)
            names.add(row.name)
    targets = (target.removeprefix("aten.") for target in RULES)
    return {target for target in targets if target.partition(".")[0] in names and not target.endswith("Scalar")}


UNARY |= {target.removesuffix(".default") for target in of_rows(1) if target.endswith(".default")}
BINARY |= {target for target in of_rows(2) if target.endswith((".Tensor", ".default", "Tensor_Tensor"))}
# Of two zeros eager's bfloat16 kernels give another one than its float32 kernels.
ONLY_FLOAT = {"softshrink", "fmin.default", "fmax.default"}


def cases(names: set[str]) -> list[tuple[str, torch.dtype]]:
    """Every operator in both dtypes."""
    both = itertools.product(sorted(names), (torch.float32, torch.bfloat16))
    return [(name, dtype) for name, dtype in both if dtype is torch.float32 or name not in ONLY_FLOAT]


def same(function: Any, *tensors: torch.Tensor) -> None:
    """Compare a lifted function with eager on tensors; in half precision the bound is a few roundings."""
    traced = traced_call(function, *tensors)
    graph = lift(traced.graph)
    assert remaining(graph) == ()
    actual, expected = interpret(graph, inputs_of(traced))[0], function(*tensors)
    expected = expected if isinstance(expected, torch.Tensor) else expected[0]
    assert form_difference(expected, actual) is None
    if not expected.is_floating_point():
        assert torch.equal(actual, expected)
        return
    exact = function(*(tensor.double() for tensor in tensors))
    exact = exact if isinstance(exact, torch.Tensor) else exact[0]
    wrong = [
        (position, expected.flatten()[position].item(), actual.flatten()[position].item())
        for position in range(expected.numel())
        if not close(*(each.flatten()[position : position + 1] for each in (actual, expected, exact)))
    ]
    assert not wrong


def close(actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> bool:
    if not same_specials(expected, actual):
        return False
    if expected == 0 and actual == 0:
        return torch.equal(expected.signbit(), actual.signbit())
    return within_native_bound(actual, expected, exact) or torch.allclose(
        actual, expected, rtol=4 * torch.finfo(expected.dtype).eps, atol=torch.finfo(expected.dtype).tiny
    )


@pytest.mark.parametrize(("name", "dtype"), cases(UNARY))
def test_an_operator_of_one_operand_agrees_on_special_numbers(name: str, dtype: torch.dtype) -> None:
    numbers = [number for number in NUMBERS if number not in UNDECIDED.get(name, ())]
    same(library.resolve(f"aten.{name}.default"), torch.tensor(numbers, dtype=dtype))


@pytest.mark.parametrize(("name", "dtype"), cases(BINARY))
def test_an_operator_of_two_operands_agrees_on_special_numbers(name: str, dtype: torch.dtype) -> None:
    # An op may read the sign of a NaN, as copysign does.
    numbers = [*NUMBERS, -math.nan] if name in of_rows(2) else NUMBERS
    pairs = torch.tensor(list(itertools.product(numbers, numbers)), dtype=dtype)
    same(library.resolve(f"aten.{name}"), pairs[:, 0].contiguous(), pairs[:, 1].contiguous())


@pytest.mark.parametrize("name", ["add", "sub", "mul", "minimum", "maximum", "eq", "lt", "bitwise_and", "div"])
@pytest.mark.parametrize("dtypes", [(torch.int8, torch.int8), (torch.int8, torch.int64), (torch.uint8, torch.int8)])
def test_integers_wrap_and_promote(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    pairs = list(itertools.product(WHOLE, WHOLE))
    left, right = (torch.tensor([pair[side] for pair in pairs]).to(dtypes[side]) for side in (0, 1))
    same(getattr(torch, name), left, right)


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_integers_divide_in_every_mode(mode: str | None) -> None:
    left, right = torch.tensor([7, -7, 7, -7, 0, 6]), torch.tensor([2, 2, -2, -2, 3, 3])
    same(lambda x, y: torch.div(x, y, rounding_mode=mode), left, right)
    same(lambda x, y: torch.div(x, y, rounding_mode=mode), left.double(), right.double())


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_powers_by_a_number_agree(exponent: float, dtype: torch.dtype) -> None:
    if dtype is torch.int32 and exponent < 0:
        pytest.skip("PyTorch refuses integers to a negative power")
    numbers = NUMBERS if dtype.is_floating_point else WHOLE
    same(lambda x: x**exponent, torch.tensor(numbers).to(dtype))


@pytest.mark.parametrize("scale", [2, 3])
def test_gradients_of_repeated_pixels_are_sums_from_zero_on(scale: int) -> None:
    special = torch.tensor([-0.0, 0.0, math.nan, math.inf, -math.inf, 1.0])
    gradient = special.repeat_interleave(6 * scale * scale).reshape(1, 6, 2 * scale, 3 * scale)
    sizes = [2 * scale, 3 * scale], [1, 6, 2, 3]
    same(lambda given: torch.ops.aten.upsample_nearest2d_backward(given, *sizes), gradient)


def test_the_lists_name_rules() -> None:
    assert {f"aten.{name}.default" for name in UNARY} | {f"aten.{name}" for name in BINARY} <= RULES.keys()
