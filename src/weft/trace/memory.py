"""Follow the memory of tensors while tracing: the values that hold its elements, with writes turned into new values.

PyTorch's tensors are windows onto memory that operators may write into; a Graph's values never change. So each piece of
memory remembers the value that holds its elements now (its base) and how often it was written; each tensor the view
steps that lead from the base to it. A write makes a new base; a tensor whose memory was written since is read by taking
its steps again from the new base. In-place code of any kind becomes pure values, run by the same kernels on the same
layouts as in eager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.graph import Place, Value, Write
from weft.ir.library import HOLE, Argument, Call, Operand, Path, ViewStep
from weft.ir.types import TensorType, Type
from weft.trace.interception.capture import extent_of, hint_of, is_stand_in, kind_of, storage_key
from weft.trace.interception.refusals import refuse

DETACHING = frozenset({"aten.detach.default", "aten.alias.default"})


@dataclass(frozen=True, slots=True)
class PathEntry:
    """A view step with the type of what it gives, and of the operator's whole result where that is a list."""

    step: ViewStep
    type: TensorType
    whole: Type | None = None


@dataclass(slots=True, eq=False)
class TracedMemory:
    """One piece of memory: the value of its elements now, how often it was written, and what looks into it."""

    base: Value
    offset: int
    first: TensorState | None = None
    version: int = 0
    inputs: list[TensorState] = field(default_factory=list)
    states: list[TensorState] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TensorState:
    """One tensor: its memory, the way from the memory's base to it, its value at a version of the memory."""

    tensor: torch.Tensor
    memory: TracedMemory
    path: tuple[PathEntry, ...]
    value: Value
    version: int
    anchor: TensorState | None = None
    input: Value | None = None
    prefix: tuple[PathEntry, ...] = ()

    def full_path(self) -> tuple[PathEntry, ...]:
        """The way from the base: through the input that it was taken of, where memory has several inputs."""
        return (self.anchor or self).prefix + self.path

    def written_path(self) -> tuple[PathEntry, ...]:
        """The way from the base to where a write lands: detaching matters to autograd only."""
        return tuple(entry for entry in self.full_path() if entry.step.target not in DETACHING)

    def input_value(self) -> Value:
        """The input that this tensor is, whatever was written into it since."""
        assert self.input is not None
        return self.input


def _nothing(_: Any) -> None:
    """Make no input."""


class TensorTable:
    """Every tensor and every piece of memory of one trace, and the values so far, in order.

    `adopt` makes an input of a real tensor that the traced function reached by itself; `place` is the user's line.
    """

    def __init__(self, adopt: Callable[[torch.Tensor], TensorState], place: Callable[[], Place | None]) -> None:
        self.values: list[Value] = []
        self.adopt = adopt
        self.place = place
        self.memories: dict[int, TracedMemory] = {}
        self.numbers: dict[Any, Value] = {}
        self.varies = False  # whether sizes are symbols
        self.derive: Callable[[Any], Value | None] = _nothing  # makes an input of what Python computed of numbers
        self.depends_on_offsets = False
        self.states: dict[int, TensorState] = {}
        self.constants: set[Value] = set()  # to autograd: computed where no gradients are recorded
        self.hides_writes = False  # from autograd, in memory of what carries a gradient

    def add_input(self, tensor: torch.Tensor, value: Value) -> TensorState:
        """Make a stand-in tensor an input of the program."""
        key = storage_key(tensor)
        memory = self.memories.get(key)
        if memory is None:
            memory = self.memories[key] = TracedMemory(value, hint_of(tensor.storage_offset()))
        state = TensorState(tensor, memory, (), value, memory.version, input=value)
        memory.inputs.append(state)
        return self.put(state)

    def put(self, state: TensorState) -> TensorState:
        """Remember a tensor."""
        state.memory.states.append(state)
        self.states[id(state.tensor)] = state
        return state

    def state_of(self, tensor: torch.Tensor) -> TensorState:
        """The state of a tensor that an operator reads or writes."""
        state = self.states.get(id(tensor))
        if state is not None:
            return state
        if not is_stand_in(tensor):
            return self.adopt(tensor)
        memory = self.memories.get(storage_key(tensor))
        if memory is None:
            refuse("foreign tensor", self.place())
        return self._window(tensor, memory)

    def _window(self, tensor: torch.Tensor, memory: TracedMemory) -> TensorState:
        """A tensor over known memory that no recorded view made: a window of these sizes, strides and offset."""
        window, base = kind_of(tensor), memory.base.type
        whole = window == base and tensor.storage_offset() == memory.offset
        if not whole and isinstance(base, TensorType) and window.dtype != base.dtype:
            refuse("reinterpreted memory", self.place())
        if memory.inputs:
            self.flatten_aliased(memory)
            self.depends_on_offsets = True
        path = () if whole and not memory.inputs else (PathEntry(as_strided(tensor), window),)
        return self.put(TensorState(tensor, memory, path, memory.base, -1))

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor's elements now."""
        state = self.state_of(tensor)
        if state.version != state.memory.version:
            value = state.memory.base
            for entry in state.full_path():
                value = self._take(value, entry)
            state.value, state.version = value, state.memory.version
        return state.value

    def _take(self, value: Value, entry: PathEntry) -> Value:
        step = entry.step
        arguments = tuple(fill(argument, Operand(0)) for argument in step.arguments)
        keywords = tuple((name, fill(argument, Operand(0))) for name, argument in step.keywords)
        whole = self.emit("library", (value,), entry.whole or entry.type, call=Call(step.target, arguments, keywords))
        return whole if step.item is None else self.emit("item", (whole,), entry.type, index=step.item)

    def emit(self, op: str, operands: tuple[Value, ...], kind: Type, **attributes: Any) -> Value:
        """Append a value."""
        value = Value(op, operands, kind, MappingProxyType(attributes), self.place())
        self.values.append(value)
        return value

    def copy(self, value: Value) -> Value:
        """Append a copy of a value in memory of its own."""
        return self.emit("library", (value,), value.type, call=Call("aten.clone.default", (Operand(0),)))

    def add_result(self, tensor: torch.Tensor, value: Value) -> TensorState:
        """Remember a tensor in new memory."""
        memory = TracedMemory(value, hint_of(tensor.storage_offset()))
        self.memories[storage_key(tensor)] = memory
        state = memory.first = TensorState(tensor, memory, (), value, 0)
        return self.put(state)

    def flatten_aliased(self, memory: TracedMemory) -> None:
        """Give memory that several inputs look into one flat base, so that a write through one is seen by all."""
        first = memory.inputs[0]
        if memory.version or first.prefix:
            return
        self.depends_on_offsets = True
        if any(state.tensor.dtype != first.tensor.dtype for state in memory.inputs):
            refuse("reinterpreted memory", self.place())
        count = extent_of(first.tensor.untyped_storage().nbytes() // first.tensor.element_size())
        flat = TensorType(first.tensor.dtype, (count,), (1,), first.tensor.device)
        entry = PathEntry(ViewStep("aten.as_strided.default", (HOLE, (count,), (1,), 0)), flat)
        memory.base = self._take(first.value, entry)
        for state in memory.inputs:
            state.prefix = (PathEntry(as_strided(state.tensor), kind_of(state.tensor)),)

    def writes(self) -> list[Write]:
        """The inputs whose memory was written, and what they hold at the end."""
        found = []
        for memory in self.memories.values():
            if memory.inputs and memory.version:
                first, kind = memory.inputs[0], memory.base.type
                path: Path = ()
                if first.prefix and isinstance(kind, TensorType):
                    path = (ViewStep("aten.as_strided.default", (HOLE, kind.shape, (1,), 0)),)
                found.append(Write(first.input_value(), memory.base, path))
        return found


def fill(argument: Argument, filling: Argument) -> Argument:
    """Put `filling` where a call has its only tensor operand, or a step its hole."""
    if isinstance(argument, tuple):
        return tuple(fill(item, filling) for item in argument)
    return filling if argument is HOLE or isinstance(argument, Operand) else argument


def as_strided(tensor: torch.Tensor) -> ViewStep:
    """The step from flat memory to a tensor's sizes, strides and offset."""
    return ViewStep(
        "aten.as_strided.default",
        (
            HOLE,
            tuple(map(extent_of, tensor.shape)),
            tuple(map(extent_of, tensor.stride())),
            extent_of(tensor.storage_offset()),
        ),
    )
