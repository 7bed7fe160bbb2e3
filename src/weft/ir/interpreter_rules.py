"""Each op -> the plain PyTorch code that says what it means: the table that the interpreter runs.

A rule takes a value and its operands' tensors; it may give a tensor of any layout, also a view of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft.ir.calls import map_arguments
from weft.ir.graph import Value
from weft.ir.interpreter_calls import filled, run_library, run_update
from weft.ir.number_operators import NUMBER_OPERATORS
from weft.ir.types import TensorType

Rule = Callable[..., Any]

ELEMENTWISE: Mapping[str, Rule] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "logical_not": torch.logical_not,
    "bitwise_not": torch.bitwise_not,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floor_div": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "select": torch.where,
}


def number(value: Value, *operands: Any) -> Any:
    """Python arithmetic."""
    arguments = map_arguments(value.attributes["arguments"], filled(operands))
    return NUMBER_OPERATORS[value.attributes["operator"]].function(*arguments)


def tensor_type(value: Value) -> TensorType:
    """The type of a value known to be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def scalar(value: Value, operand: Any) -> torch.Tensor:
    """A number as a tensor; one beyond the dtype's range becomes infinite, as in operators."""
    dtype = value.attributes["dtype"]
    wide = torch.float64 if dtype.is_floating_point else dtype
    return torch.full((), operand, dtype=wide, device=tensor_type(value).device).to(dtype)


def iota(value: Value) -> torch.Tensor:
    """Positions along one dimension."""
    shape, dimension, dtype = (value.attributes[name] for name in ("shape", "dimension", "dtype"))
    positions = torch.arange(shape[dimension], device=tensor_type(value).device).to(dtype)
    column = [1] * len(shape)
    column[dimension] = shape[dimension]
    return positions.reshape(column).expand(shape)


def set_random_state(value: Value, state: torch.Tensor) -> None:
    """Give the CPU's default generator a state."""
    del value
    torch.set_rng_state(state)


def reduction(function: Rule) -> Rule:
    """Make a rule of a function that reduces all the dimensions it is given."""

    def rule(value: Value, operand: torch.Tensor) -> Any:
        dimensions = value.attributes["dimensions"]
        # To PyTorch no dimensions mean all of them.
        return function(operand, dimensions, value.attributes["keep"]) if dimensions else operand

    return rule


def product(operand: torch.Tensor, dimensions: tuple[int, ...], keep: bool) -> torch.Tensor:
    """The product over several dimensions, last first so that the others keep their numbers."""
    for dimension in sorted(dimensions, reverse=True):
        operand = torch.prod(operand, dimension, keepdim=keep, dtype=operand.dtype)
    return operand


def position(function: Rule) -> Rule:
    """Make a rule of argmax or argmin."""

    def rule(value: Value, operand: torch.Tensor) -> Any:
        return function(operand, value.attributes["dimension"], keepdim=value.attributes["keep"])

    return rule


def top_places(value: Value, operand: torch.Tensor) -> torch.Tensor:
    """Where the first of an order are."""
    count, largest, in_order = (value.attributes[name] for name in ("count", "largest", "sorted"))
    return torch.topk(operand, count, -1, largest, in_order)[1]


def slice_rule(value: Value, operand: torch.Tensor) -> torch.Tensor:
    """A part of every dimension."""
    bounds = zip(*(value.attributes[name] for name in ("start", "stop", "step")), strict=True)
    return operand[tuple(slice(*bound) for bound in bounds)]


def pad(value: Value, operand: torch.Tensor) -> torch.Tensor:
    """More elements at both ends."""
    kind = tensor_type(value)
    result = torch.full(kind.shape, value.attributes["value"], dtype=kind.dtype, device=kind.device)
    pairs = zip(value.attributes["low"], operand.shape, strict=True)
    result[tuple(slice(low, low + extent) for low, extent in pairs)] = operand
    return result


def concat(value: Value, *operands: torch.Tensor) -> torch.Tensor:
    """Tensors one after the other."""
    return torch.cat(operands, value.attributes["dimension"])


def along(function: Rule) -> Rule:
    """Make a rule of a function that takes a tensor, a dimension, and more tensors."""

    def rule(value: Value, operand: torch.Tensor, *others: torch.Tensor) -> Any:
        return function(operand, value.attributes["dimension"], *others)

    return rule


def reduced_into(reduce: str) -> Rule:
    """Make a function that joins elements of a source with those of a tensor at given places."""

    def function(operand: torch.Tensor, dimension: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.scatter_reduce(operand, dimension, index, source, reduce)

    return function


def attribute(function: Rule, name: str) -> Rule:
    """Make a rule of a function that takes a tensor and one attribute."""

    def rule(value: Value, operand: torch.Tensor) -> Any:
        return function(operand, value.attributes[name])

    return rule


def plain(function: Rule) -> Rule:
    """Make a rule of a function that takes the operands alone."""

    def rule(value: Value, *operands: torch.Tensor) -> Any:
        del value
        return function(*operands)

    return rule


RULES: Mapping[str, Rule] = {
    **{name: plain(function) for name, function in ELEMENTWISE.items()},
    "constant": lambda value: value.attributes["tensor"],
    "number": number,
    "scalar": scalar,
    "library": run_library,
    "update": run_update,
    "item": lambda value, whole: whole[value.attributes["index"]],
    "random_state": plain(torch.get_rng_state),
    "set_random_state": set_random_state,
    "cast": attribute(torch.Tensor.to, "dtype"),
    "iota": iota,
    "sum": reduction(lambda operand, dimensions, keep: torch.sum(operand, dimensions, keep, dtype=operand.dtype)),
    "prod": reduction(product),
    "min": reduction(torch.amin),
    "max": reduction(torch.amax),
    "any": reduction(torch.any),
    "all": reduction(torch.all),
    "argmax": position(torch.argmax),
    "argmin": position(torch.argmin),
    "top_places": top_places,
    "reshape": attribute(torch.reshape, "shape"),
    "permute": attribute(torch.permute, "order"),
    "expand": attribute(torch.Tensor.expand, "shape"),
    "slice": slice_rule,
    "pad": pad,
    "concat": concat,
    "reverse": attribute(torch.flip, "dimensions"),
    "gather": along(torch.gather),
    "scatter": along(torch.scatter),
    "scatter_add": along(torch.scatter_add),
    "scatter_mul": along(reduced_into("prod")),
    "scatter_min": along(reduced_into("amin")),
    "scatter_max": along(reduced_into("amax")),
    "take": along(torch.index_select),
    "matmul": plain(torch.matmul),
}
