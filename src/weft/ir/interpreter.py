"""Run a Graph by plain PyTorch, slowly and obviously: the oracle of every test.

Values never change: what a rule gives may be a view of an operand, but nothing is written until all values are there.
Then writes go into the inputs that were handed in, and results that are views are made, of the very tensors handed in
or out. Results without a path are in memory of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.errors import InternalError, UsageError, WeftError, source_line
from weft.ir.attention import ATTENTION_RULES
from weft.ir.graph import Graph, Value
from weft.ir.interpreter_rules import RULES as PLAIN_RULES
from weft.ir.interpreter_rules import WINDOW_RULES, Rule, private_copy, take_path
from weft.ir.types import NUMBER_KINDS, NumberType, TensorType, TupleType, Type, type_of
from weft.ir.verifier import agrees

RULES: Mapping[str, Rule] = {**PLAIN_RULES, **WINDOW_RULES, **ATTENTION_RULES}
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
