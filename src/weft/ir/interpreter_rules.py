"""Say what each op means in plain PyTorch code: the table that the interpreter runs.

A rule takes a value and its operands' tensors; it may give a tensor of any layout, also a view of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.errors import UsageError
from weft.ir import library
from weft.ir.calls import HOLE, Argument, Call, Operand, Path, WrittenArgument, flat_results, map_arguments
from weft.ir.graph import Value
from weft.ir.ops import NUMBER_OPERATORS
from weft.ir.types import TensorType, TupleType


def filled(operands: Sequence[Any], written: Sequence[torch.Tensor] = ()) -> Callable[[Argument], Any]:
    """Make the function that puts tensors and numbers in the place of what stands for them."""

    def fill(leaf: Argument) -> Any:
        if isinstance(leaf, Operand):
            return operands[leaf.index]
        return written[leaf.index] if isinstance(leaf, WrittenArgument) else leaf

    return fill


def _run(call: Call, fill: Callable[[Argument], Any]) -> Any:
    operator = library.resolve(call.target)
    arguments = map_arguments(call.arguments, fill)
    keywords = {name: map_arguments(argument, fill) for name, argument in call.keywords}
    return operator(*arguments, **keywords)


def run_library(value: Value, *operands: Any) -> Any:
    """What an operator that writes nothing gives."""
    result = _run(value.attributes["call"], filled(operands))
    return tuple(flat_results(result)) if isinstance(value.type, TupleType) else result


def run_update(value: Value, *operands: Any) -> Any:
    """Run an operator that writes on private copies: its fresh results, then the copies."""
    call: Call = value.attributes["call"]
    copies = {place.base: private_copy(operands[place.base]) for place in call.written}
    written = [take_path(copies[place.base], place.path, operands) for place in call.written]
    result = _run(call, filled(operands, written))
    fresh = [leaf for leaf in flat_results(result) if not any(_is_one_memory(leaf, tensor) for tensor in written)]
    results = (*fresh, *copies.values())
    return results if isinstance(value.type, TupleType) else results[0]


def take_path(tensor: torch.Tensor, path: Path, operands: Sequence[Any] = ()) -> torch.Tensor:
    """The view of a tensor that a path leads to; its numbers may be operands of the call that writes there."""

    def given(arguments: Any) -> Any:
        return map_arguments(
            _step_arguments(tensor, arguments),
            lambda leaf: operands[leaf.index] if isinstance(leaf, Operand) else leaf,
        )

    for step in path:
        arguments, keywords = given(step.arguments), dict(given(step.keywords))
        whole = library.resolve(step.target)(*arguments, **keywords)
        tensor = whole if step.item is None else flat_results(whole)[step.item]
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"the view step {step.target} gives {type(tensor).__name__}, not a tensor")
    return tensor


def _step_arguments(tensor: torch.Tensor, arguments: Any) -> Any:
    return map_arguments(arguments, lambda leaf: tensor if leaf is HOLE or leaf == HOLE else leaf)


def private_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own that looks like the tensor in every way: sizes, strides, offset, gaps.

    The whole storage is copied, because a view taken of the copy may reach what lies between or around the elements.
    """
    storage = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy = copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.requires_grad and torch.is_grad_enabled():
        copy.copy_(tensor)  # for autograd, which does not follow storages
    copy = copy.conj() if tensor.is_conj() else copy
    return copy._neg_view() if tensor.is_neg() else copy


def _is_one_memory(leaf: Any, tensor: torch.Tensor) -> bool:
    if leaf is tensor:
        return True
    if not isinstance(leaf, torch.Tensor):
        return False
    address = leaf.untyped_storage().data_ptr()
    return address != 0 and address == tensor.untyped_storage().data_ptr()


aten = torch.ops.aten
WINDOW = ("kernel_size", "stride", "padding")
MAX_POOL = (*WINDOW, "dilation", "ceil_mode")
AVERAGE_POOL = (*WINDOW, "ceil_mode", "count_include_pad", "divisor_override")
# PyTorch pools one dimension as two, of which the first has one element: the number that each attribute has for it.
FOR_ONE_ROW = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}


def convolution(value: Value, data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A convolution without bias."""
    stride, padding, dilation, groups = _convolution_attributes(value)
    none = (0,) * len(stride)
    # PyTorch convolves no integers of 32 bits; in float64 their sums are exact up to 2 ** 53.
    exact = data.double() if data.dtype is torch.int32 else data
    found = torch.convolution(exact, weight.to(exact.dtype), None, stride, padding, dilation, False, none, groups)
    return found.to(data.dtype)


def convolution_input_gradient(value: Value, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient for the input; the input's elements do not matter, only its shape."""
    data = gradient.new_zeros(value.attributes["shape"])
    result: torch.Tensor = _convolution_backward(value, gradient, data, weight, wanted=(True, False, False))[0]
    return result


def convolution_weight_gradient(value: Value, data: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient for the weight; the weight's elements do not matter, only its shape."""
    weight = gradient.new_zeros(value.attributes["shape"])
    result: torch.Tensor = _convolution_backward(value, gradient, data, weight, wanted=(False, True, False))[1]
    return result


def _convolution_attributes(value: Value) -> tuple[Any, ...]:
    return tuple(value.attributes[name] for name in ("stride", "padding", "dilation", "groups"))


def _convolution_backward(
    value: Value, gradient: torch.Tensor, data: torch.Tensor, weight: torch.Tensor, *, wanted: tuple[bool, ...]
) -> Any:
    stride, padding, dilation, groups = _convolution_attributes(value)
    none = (0,) * len(stride)
    return aten.convolution_backward(
        gradient, data, weight, None, stride, padding, dilation, False, none, groups, list(wanted)
    )


def pooling(functions: Mapping[int, Callable[..., Any]], names: tuple[str, ...], extra: int = 0) -> Callable[..., Any]:
    """Make a rule of functions for two and three dimensions; the last `extra` operands follow the attributes."""

    def rule(value: Value, *operands: torch.Tensor) -> Any:
        one_row = operands[0].dim() == 3
        given = [_attribute(value, name, one_row=one_row) for name in names]
        tensors = [operand.unsqueeze(2) if one_row else operand for operand in operands]
        first = len(tensors) - extra
        result = functions[tensors[0].dim() - 2](*tensors[:first], *given, *tensors[first:])
        if not one_row:
            return result
        return tuple(part.squeeze(2) for part in result) if isinstance(result, tuple) else result.squeeze(2)

    return rule


def _attribute(value: Value, name: str, *, one_row: bool) -> Any:
    given = value.attributes[name]
    return (FOR_ONE_ROW[name], *given) if one_row and name in FOR_ONE_ROW else given


WINDOW_RULES: Mapping[str, Callable[..., Any]] = {
    "convolution": convolution,
    "convolution_input_gradient": convolution_input_gradient,
    "convolution_weight_gradient": convolution_weight_gradient,
    "max_pool": pooling({2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}, MAX_POOL),
    "max_pool_gradient": pooling(
        {2: aten.max_pool2d_with_indices_backward, 3: aten.max_pool3d_with_indices_backward}, MAX_POOL, extra=1
    ),
    "average_pool": pooling({2: aten.avg_pool2d, 3: aten.avg_pool3d}, AVERAGE_POOL),
    "average_pool_gradient": pooling({2: aten.avg_pool2d_backward, 3: aten.avg_pool3d_backward}, AVERAGE_POOL),
}

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
