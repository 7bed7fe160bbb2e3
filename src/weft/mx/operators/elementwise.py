"""Compute what goes element by element: functions of one array, of two, of an array and a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import RULES, OperatorRule, Shape, Sizes, computes, type_of

Unary = Callable[[Tensor], Tensor]
Binary = Callable[[Tensor, Any], Tensor]

_GAMMA_HALF = math.sqrt(math.pi)


def _round_away(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.floor(torch.abs(x) + 0.5)


def _rint(x: Tensor) -> Tensor:
    """To the nearest whole number; a half goes down, as MXNet has it."""
    below, above = torch.floor(x), torch.ceil(x)
    return torch.where((x - below) <= (above - x), below, above)


def _gamma(x: Tensor) -> Tensor:
    negative = torch.where(x > 0, -0.5, x)  # where the other branch counts, this one has no pole that spoils gradients
    reflected = math.pi / (torch.sin(math.pi * negative) * torch.exp(torch.lgamma(1 - negative)))
    return torch.where(x > 0, torch.exp(torch.lgamma(x)), reflected)


def _cube_root(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.abs(x) ** (1 / 3)


UNARY: dict[str, Unary] = {
    "abs": torch.abs,
    "arccos": torch.acos,
    "arccosh": torch.acosh,
    "arcsin": torch.asin,
    "arcsinh": torch.asinh,
    "arctan": torch.atan,
    "arctanh": torch.atanh,
    "cbrt": _cube_root,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "degrees": torch.rad2deg,
    "erf": torch.erf,
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "fix": torch.trunc,
    "floor": torch.floor,
    "gamma": _gamma,
    "gammaln": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logical_not": lambda x: x == 0,
    "negative": torch.neg,
    "radians": torch.deg2rad,
    "rcbrt": lambda x: 1 / _cube_root(x),
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "rint": _rint,
    "round": _round_away,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softsign": lambda x: x / (1 + torch.abs(x)),
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
    "ones_like": torch.ones_like,
    "zeros_like": torch.zeros_like,
    "_copy": torch.clone,
    "BlockGrad": torch.detach,
}


def _of_own_type(function: Unary, _p: Any, x: Tensor) -> Tensor:
    """A function whose result has the type of its argument, whole numbers too."""
    result = function(x)
    return result if result.dtype == x.dtype else result.to(x.dtype)


def _divided(x: Tensor, y: Any) -> Any:
    if x.is_floating_point():
        return x / y
    # Whole numbers are cut towards zero; divided by 0, where MXNet ends the process, they give 0.
    if isinstance(y, Tensor):
        zero = y == 0
        return torch.where(zero, 0, torch.div(x, torch.where(zero, 1, y), rounding_mode="trunc"))
    return torch.div(x, y, rounding_mode="trunc") if y else torch.zeros_like(x)


def _power(x: Any, y: Any) -> Tensor:
    """A power; whole numbers to negative ones are cut off, where torch refuses them."""
    is_cut = isinstance(x, Tensor) and not x.is_floating_point() and not isinstance(y, Tensor) and y < 0
    return torch.pow(x.double() if is_cut else x, y)


def _remainder(x: Tensor, y: Any) -> Tensor:
    """With the sign of the divisor; 0 where that is 0."""
    if isinstance(y, Tensor):
        zero = y == 0
        return torch.where(zero, 0, torch.remainder(x, torch.where(zero, 1, y))).to(x.dtype)
    return torch.remainder(x, y) if y else torch.zeros_like(x)


BINARY: dict[str, Binary] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": _divided,
    "mod": _remainder,
    "power": _power,
    "maximum": lambda x, y: torch.where(x >= y, x, y),
    "minimum": lambda x, y: torch.where(x <= y, x, y),
    "hypot": lambda x, y: torch.sqrt(x * x + y * y),
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "lesser": torch.lt,
    "lesser_equal": torch.le,
    "logical_and": lambda x, y: (x != 0) & _truth(y),
    "logical_or": lambda x, y: (x != 0) | _truth(y),
    "logical_xor": lambda x, y: (x != 0) ^ _truth(y),
}


def _truth(y: Any) -> Any:
    return y != 0 if isinstance(y, Tensor) else bool(y)


def _two(function: Binary, _p: Any, x: Tensor, y: Tensor) -> Tensor:
    """A function of two arrays of one type; comparisons give 0 and 1 of that type."""
    result = function(x, y)
    return result if result.dtype == x.dtype else result.to(x.dtype)


def _two_alike(function: Binary, p: Any, x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        raise MXNetError(f"Incompatible attr in node at 1-th input: expected {list(x.shape)}, got {list(y.shape)}")
    return _two(function, p, x, y)


def _with_number(function: Binary, p: Any, x: Tensor) -> Tensor:
    number = p.scalar if x.is_floating_point() else int(p.scalar)
    result = function(x, number)
    return result if result.dtype == x.dtype else result.to(x.dtype)


def _number_first(function: Binary, p: Any, x: Tensor) -> Tensor:
    number = p.scalar if x.is_floating_point() else int(p.scalar)
    result = function(torch.full_like(x, number), x)
    return result if result.dtype == x.dtype else result.to(x.dtype)


def same_sizes(_p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    """Sizes of arrays that must all be alike: what one lacks another may have."""
    known = [shape for shape in sizes if shape is not None]
    if not known:
        return sizes
    merged = [0] * len(known[0])
    for shape in known:
        if len(shape) != len(merged):
            return sizes
        merged = [new or old for new, old in zip(shape, merged, strict=True)]
    return [tuple(merged)] * len(sizes)


def _lone_unknown(_p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    """Two that are broadcast: one that is not known at all is as the other."""
    known = [shape for shape in sizes if shape]
    return [shape if shape else known[0] for shape in sizes] if len(known) == 1 else sizes


def _straight_through(unary: Callable[[Tensor], Tensor], _p: Any, x: Tensor) -> Tensor:
    return x + (unary(x) - x).detach()


for name, unary in UNARY.items():
    RULES[name] = OperatorRule(partial(_of_own_type, unary), complete=same_sizes)

ELEMENT_NAMES = {"add": "_plus", "sub": "_minus"}
for name, binary in BINARY.items():
    RULES[f"broadcast_{name}"] = OperatorRule(partial(_two, binary), complete=_lone_unknown)
    alike = f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}"
    RULES[alike] = OperatorRule(partial(_two_alike, binary), complete=same_sizes)
    RULES[ELEMENT_NAMES.get(name, f"_{name}") + "_scalar"] = OperatorRule(
        partial(_with_number, binary), numbers=("scalar",)
    )
for name in ("minus", "div", "mod", "power"):
    binary = BINARY["sub" if name == "minus" else name]
    RULES[f"_r{name}_scalar"] = OperatorRule(partial(_number_first, binary), numbers=("scalar",))
RULES["_grad_add"] = RULES["elemwise_add"]
RULES["_scatter_elemwise_div"] = RULES["elemwise_div"]
RULES["_scatter_plus_scalar"] = RULES["_plus_scalar"]
RULES["_scatter_minus_scalar"] = RULES["_minus_scalar"]
for name in ("round", "sign"):  # "ste": the gradient goes straight through
    RULES[f"_contrib_{name}_ste"] = OperatorRule(partial(_straight_through, UNARY[name]))


@computes("add_n", complete=same_sizes)
def add_n(_p: Any, *arrays: Tensor) -> Tensor:
    """Add any number of arrays."""
    return torch.stack(arrays).sum(0) if len(arrays) > 2 else sum(arrays[1:], arrays[0])


@computes("clip")
def clip(p: Any, x: Tensor) -> Tensor:
    """Bound elements from below and above."""
    low, high = (p.a_min, p.a_max) if x.is_floating_point() else (int(p.a_min), int(p.a_max))
    return torch.clamp(x, low, high)


@computes("smooth_l1")
def smooth_l1(p: Any, x: Tensor) -> Tensor:
    """A square near 0, a line farther out."""
    square = p.scalar * p.scalar
    return torch.where(torch.abs(x) < 1 / square, 0.5 * square * x * x, torch.abs(x) - 0.5 / square)


@computes("hard_sigmoid")
def hard_sigmoid(p: Any, x: Tensor) -> Tensor:
    """A line between 0 and 1; at both it has no gradient any more."""
    line = p.alpha * x + p.beta
    return torch.where(line <= 0, 0.0, torch.where(line >= 1, 1.0, line))


@computes("Cast", "amp_cast")
def cast(p: Any, x: Tensor) -> Tensor:
    """Change the element type; whole numbers wrap around, as in C."""
    wanted = type_of(p.dtype, x.dtype)
    if x.is_floating_point() and wanted in (torch.uint8, torch.int8):
        return x.to(torch.int64).to(wanted)
    return x.to(wanted, copy=True)


def _chosen_sizes(_p: Any, sizes: Sizes) -> list[Shape | None]:
    """What is chosen from has the same sizes."""
    known = next((shape for shape in sizes[1:] if shape and 0 not in shape), None)
    return [sizes[0], known or sizes[1], known or sizes[2]]


@computes("where", mixed=True, complete=_chosen_sizes)
def where(_p: Any, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Choose elements, or rows by a condition of one dimension."""
    if condition.dim() == 1 and x.dim() > 1:
        condition = condition.reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(condition != 0, x, y)


@computes("_contrib_gradientmultiplier")
def gradientmultiplier(p: Any, x: Tensor) -> Any:
    """The same; its gradient is multiplied."""
    return x * p.scalar + (x * (1 - p.scalar)).detach()


@computes("_contrib_quadratic")
def quadratic(p: Any, x: Tensor) -> Any:
    """A polynomial of degree 2."""
    return p.a * x * x + p.b * x + p.c


@computes("_contrib_div_sqrt_dim")
def div_sqrt_dim(_p: Any, x: Tensor) -> Tensor:
    """Divide by the root of the last size."""
    return x / math.sqrt(x.shape[-1])


@computes("_contrib_allclose")
def allclose(p: Any, a: Tensor, b: Tensor) -> Tensor:
    """Whether two arrays are close: 1 or 0."""
    return torch.isclose(a, b, rtol=p.rtol, atol=p.atol, equal_nan=p.equal_nan).all().reshape(1).to(a.dtype)


@computes("all_finite")
def all_finite(_p: Any, x: Tensor) -> Tensor:
    """Whether all elements are finite: 1 or 0."""
    return torch.isfinite(x).all().reshape(1).to(torch.float32)


@computes("multi_all_finite", mixed=True)
def multi_all_finite(_p: Any, *arrays: Tensor) -> Tensor:
    """Whether all elements of all arrays are finite: 1 or 0."""
    return torch.stack([torch.isfinite(x).all() for x in arrays]).all().reshape(1).to(torch.float32)


@computes("amp_multicast", mixed=True, outputs=lambda p: p.num_outputs)
def amp_multicast(p: Any, *arrays: Tensor) -> Any:
    """Bring floating arrays to their widest type, or their narrowest."""
    types = sorted({x.dtype for x in arrays}, key=lambda dtype: dtype.itemsize, reverse=not p.cast_narrow)
    return tuple(x.to(types[0]) for x in arrays)
