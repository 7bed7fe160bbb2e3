"""An operator's arguments -> a Call: tensors become operands, written ones become places in the memory they write."""

from __future__ import annotations

from typing import Any

import torch

from weft.ir.calls import Argument, Operand, WrittenArgument, WrittenPlace
from weft.ir.graph import Value
from weft.ir.types import NumberType
from weft.trace.interception.refusals import refusal
from weft.trace.memory import Memory, TensorState, TensorTable

LITERALS = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


class CallBuilder:
    """Turns an operator's arguments into call arguments, collecting operands and written places."""

    def __init__(self, table: TensorTable, written: list[torch.Tensor]) -> None:
        self.table = table
        self.written = written
        self.operands: list[Value] = []
        self.tensors: list[TensorState] = []
        self._written_places: list[WrittenPlace] = []
        self._written_ids: dict[int, int] = {}
        self._memories: list[Memory] = []
        for tensor in written:
            self._add_written(table.state_of(tensor))

    def _add_written(self, state: TensorState) -> None:
        if id(state.tensor) in self._written_ids:
            return
        memory = state.memory
        if len(memory.inputs) > 1 or (memory.inputs and _leaves_input(state)):
            self.table.flatten_aliased(memory)
        if memory not in self._memories:
            self._memories.append(memory)
            self.operands.append(memory.base)
        self._written_ids[id(state.tensor)] = len(self._written_places)
        path = tuple(entry.step for entry in state.written_path())
        self._written_places.append(WrittenPlace(self._memories.index(memory), path))

    def bases(self) -> list[Memory]:
        """The pieces of memory that the call writes."""
        return self._memories

    def places(self) -> tuple[WrittenPlace, ...]:
        """Where in them it writes."""
        return tuple(self._written_places)

    def encode(self, argument: Any) -> Argument:
        """One argument of the call."""
        if isinstance(argument, torch.Tensor):
            if id(argument) not in self._written_ids and self._overlaps(argument):
                self._add_written(self.table.state_of(argument))
            index = self._written_ids.get(id(argument))
            return self._operand(argument) if index is None else WrittenArgument(index)
        if isinstance(argument, (list, tuple)):
            return tuple(self.encode(item) for item in argument)
        if isinstance(argument, (torch.SymInt, torch.SymFloat)):
            value = self._number(argument)
            if value is not None:
                self.operands.append(value)
                return Operand(len(self.operands) - 1)
        return literal(argument)

    def _number(self, argument: torch.SymInt | torch.SymFloat) -> Value | None:
        """A number that may change from call to call: itself, or sums and products of such; no more is followed."""
        return self._written(argument.node.expr, float if isinstance(argument, torch.SymFloat) else int)

    def _written(self, expression: Any, kind: type) -> Value | None:
        if expression in self.table.numbers:
            return self.table.numbers[expression]
        if not (expression.is_Add or expression.is_Mul):
            return None
        constants = [kind(part) for part in expression.args if part.is_number]
        values = [self._written(part, kind) for part in expression.args if not part.is_number]
        found = [value for value in values if value is not None]
        if len(found) < len(values):
            return None
        result = found[0]
        for other in (*found[1:], *constants):
            result = self._combined("add" if expression.is_Add else "mul", result, other, NumberType(kind.__name__))
        return result

    def _combined(self, operator: str, first: Value, second: Value | float, kind: NumberType) -> Value:
        operands, argument = ((first, second), Operand(1)) if isinstance(second, Value) else ((first,), second)
        return self.table.emit("number", operands, kind, operator=operator, arguments=(Operand(0), argument))

    def _overlaps(self, tensor: torch.Tensor) -> bool:
        """Whether an operand looks into memory that the call writes: it must see it being written, as in eager."""
        state = self.table.state_of(tensor)
        return any(
            state.memory is other.memory and _meet(state.tensor, other.tensor)
            for other in map(self.table.state_of, self.written)
        )

    def _operand(self, tensor: torch.Tensor) -> Operand:
        state = self.table.state_of(tensor)
        value = self.table.value_of(tensor)
        self.tensors.append(state)
        if value in self.operands[len(self._memories) :]:
            return Operand(self.operands.index(value, len(self._memories)))
        self.operands.append(value)
        return Operand(len(self.operands) - 1)


def literal(argument: Any) -> Argument:
    """An argument that holds no tensor."""
    if isinstance(argument, (list, tuple)):
        return tuple(literal(item) for item in argument)
    if isinstance(argument, (*LITERALS, torch.Generator)):
        return argument
    if isinstance(argument, (torch.SymInt, torch.SymBool)):
        return int(argument)
    if isinstance(argument, torch.SymFloat):
        return float(argument)
    raise refusal("foreign argument", None, detail=type(argument).__name__)


def _leaves_input(state: TensorState) -> bool:
    """Whether a view of an input may reach memory of the input's storage outside the input."""
    return any(entry.step.target == "aten.as_strided.default" for entry in state.path)


def _meet(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether the stretches of memory that two tensors span have a place in common."""
    (start, end), (other_start, other_end) = _span(first), _span(second)
    return start < other_end and other_start < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.numel() == 0:
        return (0, 0)
    steps = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start, start + int(steps) + 1
