"""Run a Graph by plain PyTorch, slowly and obviously: the oracle of every test.

Values never change: what a rule gives may be a view of an operand, but nothing is written until all values are there.
Then writes go into the inputs that were handed in, and results that are views are made, of the very tensors handed in
or out. Results without a path are in memory of their own.

A rule takes a value and its operands' tensors; it may give a tensor of any layout, also a view of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.errors import InternalError, UsageError, WeftError, source_line
from weft.ir import library
from weft.ir.attention import ATTENTION_RULES
from weft.ir.generator import generator_state
from weft.ir.graph import Graph, Value
from weft.ir.library import HOLE, Argument, Call, Operand, Path, WrittenArgument, flat_results, map_arguments
from weft.ir.ops import NUMBER_OPERATORS
from weft.ir.recurrent import recurrent
from weft.ir.types import NUMBER_KINDS, NumberType, TensorType, TupleType, Type, type_of
from weft.ir.verifier import agrees


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


def recurrent_layer(value: Value, *operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The states of a recurrent layer, and the last one."""
    return recurrent(value.attributes["cell"], *operands, reverse=value.attributes["reverse"])


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
    "random_state": plain(generator_state),
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
    "recurrent": recurrent_layer,
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
    **WINDOW_RULES,
    **ATTENTION_RULES,
}


NUMBERS = tuple(NUMBER_KINDS.values())


def interpret(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Run a Graph on tensors and numbers: write into the inputs what it writes, and give its results."""
    check_inputs(graph, inputs)
    with torch.no_grad():
        given = dict(zip(graph.inputs, inputs, strict=True))
        known = dict(given)
        for value in graph.values:
            known[value] = evaluate(value, [known[operand] for operand in value.operands])
        handed_out = {
            result.value: _own(known[result.value]) for result in graph.results if result.value not in given
        } | given
        sources = [_own(known[write.value]) for write in graph.writes]
        for write, source in zip(graph.writes, sources, strict=True):
            take_path(given[write.input], write.path).copy_(source)
        return [take_path(handed_out[result.value], result.path) for result in graph.results]


def evaluate(value: Value, operands: Sequence[Any]) -> Any:
    """Compute one value from its operands, laid out in memory as its type says."""
    if value.op not in RULES:
        raise InternalError(f"the interpreter has no rule for the op {value.op}")
    try:
        result = RULES[value.op](value, *operands)
    except WeftError:
        raise
    except Exception as error:
        # The error stays what PyTorch raised; Python prints a note below it (from 3.11 on).
        add_note = getattr(error, "add_note", None)
        if value.place is not None and add_note is not None:
            add_note(f"at {source_line(value.place.filename, value.place.line)}")
        raise
    return _laid_out(value, result, value.type)


def apply_rule(value: Value, operands: Sequence[Any]) -> Any:
    """Compute one value by the rule of its op, in whatever strides that gives, also of sizes that vary.

    A function, not the table: a trace looks into tables, for what may change, and not into functions of Weft's.
    """
    return RULES[value.op](value, *operands)


def check_inputs(graph: Graph, inputs: Sequence[Any]) -> None:
    """Check that inputs are what a Graph declares."""
    if len(inputs) != len(graph.inputs):
        raise UsageError(f"graph {graph.name} takes {len(graph.inputs)} inputs, not {len(inputs)}")
    for position, (declared, given) in enumerate(zip(graph.inputs, inputs, strict=True)):
        name = declared.name or str(position)
        if isinstance(declared.type, NumberType):
            if type(given) is not NUMBER_KINDS[declared.type.kind]:
                raise UsageError(f"input {name} of graph {graph.name} is {declared.type}, not {given!r}")
        elif not isinstance(given, torch.Tensor):
            raise UsageError(f"input {name} of graph {graph.name} is {declared.type}, not a {type(given).__name__}")
        elif not _same_layout(declared.type, type_of(given)):
            raise UsageError(f"input {name} of graph {graph.name} is {declared.type}, not {type_of(given)}")


def _same_layout(declared: Type, given: Type) -> bool:
    """Whether types agree, and strides too where there is another element to step to."""
    if not isinstance(declared, TensorType) or not isinstance(given, TensorType):
        return declared == given
    if not agrees(declared, given):
        return False
    steps = zip(declared.shape, declared.strides, given.strides, strict=True)
    return declared.size == 0 or all(extent == 1 or one == other for extent, one, other in steps)


def _laid_out(value: Value, result: Any, declared: Type) -> Any:
    """The same elements with the declared strides; anything else than strides must already be as declared."""
    if isinstance(declared, TupleType):
        return tuple(_laid_out(value, *pair) for pair in zip(result, declared.items, strict=True))
    if not isinstance(declared, TensorType):
        return result
    if result is None and not declared.size:  # what an operator leaves out has no elements: an LSTM's workspace
        return torch.empty_strided(declared.shape, declared.strides, dtype=declared.dtype, device=declared.device)
    given = type_of(result)
    if not agrees(declared, given):
        place = source_line(value.place.filename, value.place.line) if value.place else None
        raise InternalError(f"{value.op} gave {given}, declared as {declared}", where=place)
    return result if given.strides == declared.strides else with_strides(result, declared.strides)


# PyTorch writes no whole numbers without a sign by index.
SAME_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The same elements at other distances, also where several share one place."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    # Where each element goes: the sum over dimensions of its position times the stride.
    offsets = torch.zeros(tensor.shape, dtype=torch.int64, device=tensor.device)
    for dimension, (extent, stride) in enumerate(zip(tensor.shape, strides, strict=True)):
        column = [1] * tensor.dim()
        column[dimension] = extent
        offsets += torch.arange(extent, device=tensor.device).reshape(column) * stride
    elements, bits = tensor.reshape(-1), SAME_BITS.get(tensor.dtype)
    if bits is not None:  # else autograd, which follows no view of other elements, may differentiate it
        elements = elements.view(bits)
    memory = torch.zeros(int(offsets.max()) + 1, dtype=elements.dtype, device=tensor.device)
    memory[offsets.reshape(-1)] = elements
    return (memory if bits is None else memory.view(tensor.dtype)).as_strided(tensor.shape, strides)


def _own(result: Any) -> Any:
    """The result in memory that nothing else refers to."""
    return private_copy(result) if isinstance(result, torch.Tensor) else result
