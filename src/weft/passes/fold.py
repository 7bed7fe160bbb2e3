"""Compute at compile time what needs no input: small values of constants, and fills of one number.

Not folded: what is random, has effects or reads memory that nobody wrote; what the caller sees, because a result must
be new memory at every call; and what would store a table where a rule was, such as an expanded number.
"""

from __future__ import annotations

import torch

from weft.ir import library
from weft.ir.graph import Graph, Value
from weft.ir.interpreter import evaluate
from weft.ir.library import Call
from weft.ir.ops import OPS, build
from weft.ir.types import TensorType, type_of
from weft.passes.rewrite import SAME_ELEMENTS, Groups, Number, is_reproducible, rebuild, rebuilt, tensor_type, uniform

LARGEST = 1 << 16
"""Bytes of a folded constant; beyond, computing costs less than keeping and loading."""

GROWTH = 1 << 10
"""Bytes that a folded constant may take more than the constants it is folded from."""

FILLED_WITH: dict[str, Number] = {
    "aten.zeros": 0,
    "aten.zeros_like": 0,
    "aten.new_zeros": 0,
    "aten._efficientzerotensor": 0,  # has no memory, so may be no constant itself
    "aten.ones": 1,
    "aten.ones_like": 1,
    "aten.new_ones": 1,
}
"""Operators that fill a tensor with one number, whatever their operand holds."""

FILLED_WITH_ARGUMENT = {"aten.full": 1, "aten.full_like": 1, "aten.new_full": 2, "aten.scalar_tensor": 0}
"""As above, with the position of the argument that is the number."""

ERRORS = (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError)
"""What PyTorch and the interpreter raise for operands that an operator does not take."""


def fold_constants(graph: Graph) -> Graph:
    """Replace values that need no input by constants, or by one constant expanded."""
    return rebuild(graph, folded)


def folded(value: Value, groups: Groups) -> Value:
    """A constant, or one expanded, that equals the value; the value itself where that is not known or not wise."""
    kind = value.type
    if not isinstance(kind, TensorType) or value.op in ("constant", "expand"):
        return value
    if not is_reproducible(value) or groups.is_seen(value):
        return value
    return repeated_number(value, kind) or table_of_numbers(value, kind) or value


def repeated_number(value: Value, kind: TensorType) -> Value | None:
    """One number, expanded, for a value of which every element is that number."""
    one = TensorType(kind.dtype, (), (), kind.device)
    if (number := filled_with(value)) is not None:
        keywords = (("dtype", kind.dtype), ("device", kind.device))
        alone: Value | None = build("library", type=one, call=Call("aten.full.default", ((), number), keywords))
    elif kind.size > 1 and value.op in SAME_ELEMENTS:
        alone = single(value.operands[0])
    elif kind.size > 1 and OPS[value.op].alike:
        if any(uniform(operand) is None for operand in value.operands):
            return None
        numbers = [number for number in map(single, value.operands) if number is not None]
        alone = build(value.op, *numbers, type=one, **value.attributes)
    else:
        return None
    tensor = None if alone is None else computed(alone, one)
    if tensor is None:
        return None
    constant = build("constant", type=one, place=value.place, tensor=tensor)
    return constant if kind == one else rebuilt(value, "expand", constant, shape=kind.shape)


def filled_with(value: Value) -> Number | None:
    """The number that a filling operator writes everywhere, unless it changes from call to call."""
    if value.op != "library":
        return None
    call: Call = value.attributes["call"]
    name = library.packet_name(call.target)
    if name in FILLED_WITH:
        return FILLED_WITH[name]
    position = FILLED_WITH_ARGUMENT.get(name, len(call.arguments))
    number = call.arguments[position] if position < len(call.arguments) else None
    return number if isinstance(number, bool | int | float | complex) else None


def single(value: Value) -> Value | None:
    """One element of a value whose elements are all one number, as a constant of no dimensions."""
    if uniform(value) is None:
        return None
    while value.op in SAME_ELEMENTS:
        value = value.operands[0]
    tensor = value.attributes["tensor"].reshape(-1)[0].clone()
    return build("constant", type=type_of(tensor), tensor=tensor)


def table_of_numbers(value: Value, kind: TensorType) -> Value | None:
    """A constant for a value of constants, if it is small and hardly larger than they are."""
    if any(operand.op != "constant" for operand in value.operands):
        return None
    given = sum(bytes_in(tensor_type(operand)) for operand in value.operands)
    if bytes_in(kind) > min(LARGEST, given + GROWTH if value.operands else LARGEST):
        return None
    tensor = computed(value, kind)
    return None if tensor is None else build("constant", type=kind, place=value.place, tensor=tensor)


def bytes_in(kind: TensorType) -> int:
    """The bytes that the elements take."""
    return kind.size * kind.dtype.itemsize


def computed(value: Value, kind: TensorType) -> torch.Tensor | None:
    """The tensor that a value of constants is, or None if it cannot be computed or is laid out in another way."""
    if kind.device.type == "meta":
        return None  # forward-mode gradients ask such tensors for their look; they have no elements, and no autocast
    operands = [operand.attributes["tensor"] for operand in value.operands]
    # Whoever compiles may be inside autocast or inference mode; the constant serves calls that are not.
    with torch.inference_mode(mode=False), torch.no_grad(), torch.autocast(kind.device.type, enabled=False):
        try:
            tensor = evaluate(value, operands)
        except ERRORS:
            return None  # eager PyTorch would raise as well, but when the line runs: so the value stays, to raise then
        own = tensor if tensor.untyped_storage().nbytes() <= LARGEST else tensor.clone()
        own = own.resolve_conj().resolve_neg()
    return own if type_of(own) == kind else None
