"""Accuracy and special values of vector mathematics, on every level of instructions, against torch in float64."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch

from weft.codegen.llvm.module import Module, vector
from weft.codegen.objects.native import compile_native
from weft.codegen.vecmath.functions import FUNCTIONS, emit_function
from weft.errors import InternalError
from weft.target import host_target

LEVELS = ("native", "avx2", "generic")
UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    function.__name__: function
    for function in (
        torch.exp, torch.exp2, torch.expm1, torch.log, torch.log1p, torch.log2, torch.sigmoid, torch.tanh, torch.sinh,
        torch.cosh, torch.sin, torch.cos, torch.tan, torch.asin, torch.acos, torch.atan, torch.erf, torch.erfc,
        torch.log10, torch.asinh, torch.acosh, torch.atanh,
    )
}  # fmt: skip
BINARY = {"pow": torch.pow, "atan2": torch.atan2, "fmod": torch.fmod}
UNITS_FLOAT = 2.0
UNITS_DOUBLE = 4.0
NAMES = {"float": np.float32, "double": np.float64}
LEAST_UNIT = {"float": 2.0**-149, "double": 2.0**-1074}
DIGITS = {"float": 23, "double": 52}

EDGES = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1e-45, -1e-45, 1e-38, -1e-38, 1e-20, -1e-20,
    88.7, 88.8, 89.0, 90.0, -87.0, -88.0, -104.0, -103.9, -103.97, -105.0, 128.0, 127.5, -149.0, -150.0, -149.5, 3e38,
    -3e38, 0.625, 0.9, 4.0, 10.0, -17.0, -18.0, 2.0**20, 2.0**21, 1e30, -1e30, 3.1415927, 1.5707964, 0.99999994, 3.0,
    -3.0, 0.70710678, 1.41421356, 2.0**24, 2.0**30,
]  # fmt: skip


def build(name: str, element: str, level: str, arity: int) -> Callable[..., np.ndarray]:
    target = host_target() if level == "native" else host_target().masked(level)
    lanes = target.lanes(32)
    module = Module(target)
    f = module.function("kernel", [*["ptr noalias"] * (arity + 1), "i64"])
    output, *inputs, end = f.parameters
    with f.loop(0, end, lanes) as loop:
        operands = [f.load(vector(element, lanes), f.offset(pointer, element, loop.index)) for pointer in inputs]
        f.store(emit_function(f, name, operands), f.offset(output, element, loop.index))
    library = compile_native(str(module), target, use_cache=False)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arity + 1), ctypes.c_int64)(library.address("kernel"))

    def run(*operands: np.ndarray) -> np.ndarray:
        count = len(operands[0])
        padded = [np.ascontiguousarray(np.pad(operand, (0, -count % lanes))) for operand in operands]
        result = np.empty_like(padded[0])
        call(result.ctypes.data, *[operand.ctypes.data for operand in padded], len(result))
        assert library.names
        return result[:count]

    return run


def units_apart(got: np.ndarray, exact: np.ndarray, element: str) -> np.ndarray:
    """Count the units in the last place between results and exact values; 0 where both are NaN or the same."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(NAMES[element])
        size = np.abs(rounded).astype(np.float64)
        unit = 2.0 ** (np.floor(np.log2(np.where(size > 0, size, 1.0))) - DIGITS[element])
        unit = np.maximum(np.where(size > 0, unit, 0.0), LEAST_UNIT[element])
        distance = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    known = np.isfinite(distance)
    return np.where(same, np.where(known, distance, 0.0), np.where(known, distance, np.inf))


def floats_of_every_size(count: int) -> np.ndarray:
    random = np.random.default_rng(7)
    everything = random.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
    moderate = [(random.random(count) * 2 - 1).astype(np.float32) * np.float32(s) for s in (1, 4, 20, 100)]
    return np.concatenate([everything, *moderate, np.array(EDGES, np.float32)])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", UNARY)
def test_a_float_function_is_within_two_units(name: str, level: str) -> None:
    x = floats_of_every_size(20_000)
    exact = UNARY[name](torch.from_numpy(x).double()).numpy()
    apart = units_apart(build(name, "float", level, 1)(x), exact, "float")
    assert apart.max() <= UNITS_FLOAT, f"{apart.max()} units at {x[apart.argmax()]!r}"


@pytest.mark.parametrize("level", LEVELS)
def test_sigmoid_is_within_two_units_where_a_sum_with_1_loses_the_power(level: str) -> None:
    x = np.linspace(-19.0, -14.0, 200_000, dtype=np.float32)
    x = np.concatenate([x, -x])
    exact = torch.sigmoid(torch.from_numpy(x).double()).numpy()
    got = build("sigmoid", "float", level, 1)(x)
    assert units_apart(got, exact, "float").max() <= UNITS_FLOAT
    assert got.max() <= 1.0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bounds", [(0.24, 0.27), (0.47, 0.55), (0.59, 0.62), (7.9, 9.2)])
def test_tanh_is_within_two_units_where_it_takes_another_power(level: str, bounds: tuple[float, float]) -> None:
    first, last = np.array(bounds, np.float32).view(np.uint32)
    x = np.arange(first, last, 5, dtype=np.uint32).view(np.float32)
    exact = torch.tanh(torch.from_numpy(x).double()).numpy()
    got = build("tanh", "float", level, 1)(x)
    assert units_apart(got, exact, "float").max() <= UNITS_FLOAT
    assert got.max() <= 1.0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", BINARY)
def test_a_float_function_of_two_operands_is_within_two_units(name: str, level: str) -> None:
    random = np.random.default_rng(3)
    x, y = (random.permutation(floats_of_every_size(20_000)) for _ in range(2))
    edges = np.array(EDGES, np.float32)
    x = np.concatenate([x, np.repeat(edges, len(edges))])
    y = np.concatenate([y, np.tile(edges, len(edges))])
    exact = BINARY[name](torch.from_numpy(x).double(), torch.from_numpy(y).double()).numpy()
    apart = units_apart(build(name, "float", level, 2)(x, y), exact, "float")
    place = apart.argmax()
    assert apart.max() <= UNITS_FLOAT, f"{apart.max()} units at {x[place]!r}, {y[place]!r}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", UNARY)
def test_a_double_function_is_within_a_few_units(name: str, level: str) -> None:
    random = np.random.default_rng(11)
    moderate = [(random.random(5000) * 2 - 1) * scale for scale in (1e-8, 1.0, 4.0, 50.0, 700.0)]
    x = np.concatenate([*moderate, np.array([*EDGES, 5e-324, 1e-310, 709.7, 1e300, -1e300])])
    exact = UNARY[name](torch.from_numpy(x)).numpy()
    apart = units_apart(build(name, "double", level, 1)(x), exact, "double")
    assert apart.max() <= UNITS_DOUBLE, f"{apart.max()} units at {x[apart.argmax()]!r}"


ODD = ("sin", "tan", "expm1", "tanh", "sinh", "asin", "atan", "erf", "log1p", "asinh", "atanh")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ODD)
def test_the_sign_of_zero_is_kept(name: str, level: str) -> None:
    result = build(name, "float", level, 1)(np.array([0.0, -0.0], np.float32))
    assert list(np.signbit(result)) == [False, True]


@pytest.mark.parametrize("name", UNARY)
def test_one_lane_gives_the_same_bits_as_a_vector(name: str) -> None:
    x = floats_of_every_size(1000)
    wide = build(name, "float", "native", 1)(x)
    apart = [build(name, "float", "native", 1)(x[i : i + 1])[0] for i in (0, 999, 2500)]
    assert [wide[i].tobytes() for i in (0, 999, 2500)] == [value.tobytes() for value in apart]


def test_a_function_without_a_rule_is_an_error() -> None:
    f = Module(host_target()).function("kernel", ["ptr"])
    with pytest.raises(InternalError, match="no rule computes gamma"):
        emit_function(f, "gamma", [f.load("float", f.parameters[0])])


def test_every_function_has_a_rule_for_float_and_double() -> None:
    assert all(set(rules) == {"float", "double"} for rules in FUNCTIONS.values())
    assert set(FUNCTIONS) == set(UNARY) | set(BINARY)
