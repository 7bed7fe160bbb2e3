"""Record operators as they run as values of a Graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.graph import Place, Value
from weft.ir.library import (
    HOLE,
    Argument,
    Call,
    Operand,
    ViewStep,
    WrittenArgument,
    WrittenPlace,
    flat_results,
    name_of,
    written_arguments,
)
from weft.ir.types import NOTHING, NumberType, TupleType, Type, UnsizedType
from weft.trace.interception.capture import (
    Operator,
    dress_result,
    extent_of,
    hint_of,
    is_stand_in,
    kind_of,
    storage_key,
)
from weft.trace.interception.refusals import refusal, refuse
from weft.trace.interception.size_expressions import is_made_of_sizes
from weft.trace.memory import PathEntry, TensorState, TensorTable, TracedMemory, fill

LITERALS = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


SIZE_OPERATORS: Mapping[str, tuple[str, type, type]] = MappingProxyType(
    {
        "ToFloat": ("float", int, float),
        "FloatTrueDiv": ("truediv", float, float),
        "IntTrueDiv": ("truediv", int, float),
        "FloatPow": ("pow", float, float),
        "TruncToInt": ("int", float, int),
        "FloorDiv": ("floordiv", int, int),
        "PythonMod": ("mod", int, int),
        "Mod": ("mod", int, int),
    }
)
"""Operators on numbers by PyTorch's names for them, as a Graph knows them, what they take and what they give."""


class CallBuilder:
    """Turns an operator's arguments into call arguments, collecting operands and written places."""

    def __init__(self, table: TensorTable, written: list[torch.Tensor]) -> None:
        self.table = table
        self.written = written
        self.operands: list[Value] = []
        self.tensors: list[TensorState] = []
        self._written_places: list[WrittenPlace] = []
        self._written_ids: dict[int, int] = {}
        self._memories: list[TracedMemory] = []
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

    def bases(self) -> list[TracedMemory]:
        """The pieces of memory that the call writes."""
        return self._memories

    def places(self) -> tuple[WrittenPlace, ...]:
        """Where in them it writes."""
        return tuple(self._written_places)

    def encode(self, argument: Any, *, is_size: bool = False) -> Argument:
        """One argument of the call; numbers in the places of sizes are part of what it is."""
        if isinstance(argument, torch.Tensor):
            if id(argument) not in self._written_ids and self._overlaps(argument):
                self._add_written(self.table.state_of(argument))
            index = self._written_ids.get(id(argument))
            return self._operand(argument) if index is None else WrittenArgument(index)
        if isinstance(argument, (list, tuple)):
            return tuple(self.encode(item, is_size=is_size) for item in argument)
        if isinstance(argument, (torch.SymInt, torch.SymFloat)) and not (is_size and is_made_of_sizes(argument)):
            value = self._number(argument)
            if value is not None:
                self.operands.append(value)
                return Operand(len(self.operands) - 1)
        return literal(argument)

    def _number(self, argument: torch.SymInt | torch.SymFloat) -> Value | None:
        """A number that may change from call to call: itself, sums and products of such, or what Python computes."""
        found = self._written(argument.node.expr, float if isinstance(argument, torch.SymFloat) else int)
        return self.table.derive(argument) if found is None else found

    def _written(self, expression: Any, kind: type) -> Value | None:
        if expression in self.table.numbers:
            return self.table.numbers[expression]
        if not (expression.is_Add or expression.is_Mul):
            return self._applied(expression) if self.table.varies else None
        constants = [kind(part) for part in expression.args if part.is_number]
        values = [self._written(part, kind) for part in expression.args if not part.is_number]
        found = [value for value in values if value is not None]
        if len(found) < len(values):
            return None
        result = found[0]
        for other in (*found[1:], *constants):
            result = self._combined("add" if expression.is_Add else "mul", result, other, NumberType(kind.__name__))
        return result

    def _applied(self, expression: Any) -> Value | None:
        """What an operator of Python gives of numbers that are made of sizes."""
        operator, taken, kind = SIZE_OPERATORS.get(expression.func.__name__, ("", int, int))
        parts: list[Any] = [part if part.is_number else self._written(part, taken) for part in expression.args]
        if not operator or any(part is None for part in parts):
            return None
        values = tuple(part for part in parts if isinstance(part, Value))
        places = iter(range(len(values)))
        arguments = tuple(
            Operand(next(places)) if isinstance(part, Value) else (int if part.is_integer else float)(part)
            for part in parts
        )
        return self.table.emit("number", values, NumberType(kind.__name__), operator=operator, arguments=arguments)

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
    if isinstance(argument, torch.SymInt):
        return extent_of(argument)
    if isinstance(argument, torch.SymBool):
        return bool(argument)
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
    start = int(hint_of(tensor.storage_offset()))
    return start, start + int(hint_of(steps)) + 1


AS_STRIDED = "aten.as_strided.default"
COUNTING = "aten.arange."  # its numbers say how large the result is
# In-place changes of a tensor's sizes and strides are views that replace the tensor they were taken of.
INPLACE_VIEWS: Mapping[str, str] = MappingProxyType(
    {
        "aten.t_.default": "aten.t.default",
        "aten.transpose_.default": "aten.transpose.int",
        "aten.squeeze_.default": "aten.squeeze.default",
        "aten.squeeze_.dim": "aten.squeeze.dim",
        "aten.squeeze_.dims": "aten.squeeze.dims",
        "aten.unsqueeze_.default": "aten.unsqueeze.default",
        "aten.as_strided_.default": "aten.as_strided.default",
        "aten.detach_.default": "aten.detach.default",
    }
)


REFUSED_TARGETS: Mapping[str, str] = MappingProxyType(
    {
        "aten.set_.source_Tensor": "memory replaced",
        "aten.set_.source_Storage": "memory replaced",
        "aten.set_.source_Storage_storage_offset": "memory replaced",
        "aten.set_.default": "memory replaced",
        "aten.set_data.default": "memory replaced",
        "prims._tensor_version.default": "version",  # as Dynamo's graphs ask
        # PyTorch's shape rules of these give plain tensors, or none at all.
        "aten.quantize_per_tensor.default": "layout",
        "aten.quantize_per_tensor.tensor_qparams": "layout",
        "aten.quantize_per_tensor.tensors": "layout",
        "aten.quantize_per_tensor_dynamic.default": "layout",
        "aten.quantize_per_channel.default": "layout",
        "aten._make_per_tensor_quantized_tensor.default": "layout",
        "aten._make_per_channel_quantized_tensor.default": "layout",
    }
)


Adopt = Callable[[torch.Tensor], TensorState]
Results = Callable[[Call, CallBuilder, Callable[[], Any]], Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """One result of an operator: its value; of a list also its place in it and the list's type."""

    value: Value
    index: int | None = None
    whole: Type | None = None


class Recorder(TensorTable):
    """Records the operators of one program; `results` gives stand-ins for a call's results, from `run` if need be.

    More than `most` values are refused: a program takes some milliseconds to make for each.
    """

    def __init__(self, adopt: Adopt, place: Callable[[], Place | None], results: Results, most: int) -> None:
        super().__init__(adopt, place)
        self.results = results
        self.most = most

    def record(self, operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any], run: Any) -> Any:
        """Record one operator; `run(arguments, keywords)` gives its result on stand-ins."""
        target = name_of(operator)
        if target in INPLACE_VIEWS:
            return self._record_inplace_view(target, arguments, keywords, run)
        if target in REFUSED_TARGETS:
            refuse(REFUSED_TARGETS[target], self.place())
        if len(self.values) > self.most:
            refuse("many operators", self.place())
        written = _written_tensors(target, operator, arguments, keywords)
        arguments, keywords = self._stand_ins((arguments, keywords))
        if target == AS_STRIDED:
            arguments = self._from_first_element(arguments)
        written = [self.state_of(tensor).tensor for tensor in written]
        builder = CallBuilder(self, written)
        sizes = self._places_of_sizes(target, operator)
        call_arguments = tuple(
            builder.encode(argument, is_size=place in sizes) for place, argument in enumerate(arguments)
        )
        call_keywords = tuple((name, builder.encode(entry, is_size=name in sizes)) for name, entry in keywords.items())
        call = Call(target, call_arguments, call_keywords, builder.places())
        if written:
            return self._record_update(call, builder, run(arguments, keywords))
        result = self.results(call, builder, lambda: run(arguments, keywords))
        return self._record_results(call, builder, result)

    def _places_of_sizes(self, target: str, operator: Operator) -> frozenset[int | str]:
        """Where an operator takes sizes, by position and by name, in a trace in which some vary."""
        if not self.varies:
            return frozenset()
        parameters = operator._schema.arguments
        is_size = ["int" in str(entry.type) or target.startswith(COUNTING) for entry in parameters]
        places = {place for place, size in enumerate(is_size) if size}
        return frozenset(places | {parameters[place].name for place in places})

    def record_unsized(
        self,
        operator: Operator,
        arguments: Any,
        keywords: dict[str, Any],
        results: list[tuple[torch.Tensor, UnsizedType]],
    ) -> tuple[torch.Tensor, ...]:
        """Record an operator whose results have sizes that only a run knows; `results` hold their places."""
        builder = CallBuilder(self, [])
        given = builder.encode(self._stand_ins(arguments))
        named = tuple((name, builder.encode(self._stand_ins(argument))) for name, argument in keywords.items())
        kinds = tuple(kind for _, kind in results)
        call = Call(name_of(operator), given, named)
        whole = self.emit("library", tuple(builder.operands), TupleType(kinds), call=call)
        for index, (tensor, kind) in enumerate(results):
            self.add_result(tensor, self.emit("item", (whole,), kind, index=index))
        return tuple(tensor for tensor, _ in results)

    def record_found(
        self, operator: Operator, arguments: Any, keywords: dict[str, Any], results: Sequence[torch.Tensor]
    ) -> Value:
        """Record an operator that finds out how large its results are; `results` stand for them. Gives the first."""
        builder = CallBuilder(self, [])
        given = builder.encode(self._stand_ins(arguments))
        named = tuple((name, builder.encode(self._stand_ins(argument))) for name, argument in keywords.items())
        kinds = tuple(map(kind_of, results))
        whole_kind: Type = kinds[0] if len(kinds) == 1 else TupleType(kinds)
        whole = self.emit("library", tuple(builder.operands), whole_kind, call=Call(name_of(operator), given, named))
        values = (
            [whole]
            if len(kinds) == 1
            else [self.emit("item", (whole,), kind, index=index) for index, kind in enumerate(kinds)]
        )
        for tensor, value in zip(results, values, strict=True):
            dress_result(tensor)
            self.add_result(tensor, value)
        return values[0]

    def _from_first_element(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of as_strided without the offset, where it is the tensor's own in memory of the program."""
        tensor, *others = arguments
        if len(others) == 3 and others[2] == tensor.storage_offset() and not self.state_of(tensor).memory.inputs:
            return (tensor, *others[:2])
        return arguments

    def _stand_ins(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item if is_stand_in(item) else self.state_of(item).tensor
        if isinstance(item, (list, tuple)):
            return type(item)(self._stand_ins(entry) for entry in item)
        return {name: self._stand_ins(entry) for name, entry in item.items()} if isinstance(item, dict) else item

    def _record_results(self, call: Call, builder: CallBuilder, result: Any) -> Any:
        leaves = flat_results(result)
        single = not isinstance(result, (list, tuple))
        kinds = tuple(self._kind(leaf) for leaf in leaves)
        whole_kind: Type = kinds[0] if single else TupleType(kinds)
        whole = self.emit("library", tuple(builder.operands), whole_kind, call=call)
        if not torch.is_grad_enabled():
            self.constants.add(whole)
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor) or id(leaf) in self.states:
                continue  # no tensor, or an operator that hands back its argument
            dress_result(leaf)
            value = whole if single else self.emit("item", (whole,), kinds[index], index=index)
            if storage_key(leaf) not in self.memories:
                self.add_result(leaf, value)
            else:
                self._add_view(leaf, builder, call, _Item(value) if single else _Item(value, index, whole_kind))
        return result

    def _kind(self, leaf: Any) -> Type:
        if not isinstance(leaf, torch.Tensor):
            return NOTHING
        if leaf.layout is not torch.strided:
            refuse("layout", self.place())
        return kind_of(leaf)

    def _add_view(self, tensor: torch.Tensor, builder: CallBuilder, call: Call, item: _Item) -> None:
        memory = self.memories[storage_key(tensor)]
        sources = [state for state in builder.tensors if state.memory is memory]
        if len(sources) != 1 or len(builder.operands) != 1:
            state = self._window(tensor, memory)
            state.value, state.version = item.value, memory.version
            return
        source = sources[0]
        step = ViewStep(
            call.target,
            tuple(fill(argument, HOLE) for argument in call.arguments),
            tuple((name, fill(argument, HOLE)) for name, argument in call.keywords),
            item.index,
        )
        path = (*source.path, PathEntry(step, kind_of(tensor), item.whole))
        anchor = source.anchor or source
        self.put(TensorState(tensor, memory, path, item.value, memory.version, anchor=anchor))
        if memory.inputs and call.target == "aten.as_strided.default":
            self.depends_on_offsets = True

    def _record_update(self, call: Call, builder: CallBuilder, result: Any) -> Any:
        fresh = [leaf for leaf in flat_results(result) if not self._is_written(leaf, builder.written)]
        memories = builder.bases()
        self.hides_writes = self.hides_writes or any(self._hides_write(memory, builder.written) for memory in memories)
        base_types = [self._base_type(memory, builder.written, call.target) for memory in memories]
        types = (*(self._kind(leaf) for leaf in fresh), *base_types)
        whole = self.emit(
            "update", tuple(builder.operands), types[0] if len(types) == 1 else TupleType(types), call=call
        )
        if not torch.is_grad_enabled():
            self.constants.add(whole)
        parts = (
            [whole]
            if len(types) == 1
            else [self.emit("item", (whole,), kind, index=index) for index, kind in enumerate(types)]
        )
        for leaf, value in zip(fresh, parts[: len(fresh)], strict=True):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self.states:
                self.add_result(leaf, value)
        for memory, value in zip(memories, parts[len(fresh) :], strict=True):
            memory.base = value
            memory.version += 1
        return result

    def _hides_write(self, memory: TracedMemory, written: list[torch.Tensor]) -> bool:
        """Whether autograd does not see that memory is written of which it knows another tensor."""
        own = (tensor for tensor in written if self.states[id(tensor)].memory is memory)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in own):
            return any(state.path and state.value in self.constants for state in memory.states)
        return any(state.tensor.requires_grad for state in memory.states)

    def _base_type(self, memory: TracedMemory, written: list[torch.Tensor], target: str) -> Type:
        """The base's type after a write: an operator may resize the tensor that it is given to write."""
        for tensor in written:
            state = self.states[id(tensor)]
            if state.memory is memory and not state.written_path() and kind_of(tensor) != memory.base.type:
                if _is_inplace(target):
                    raise RuntimeError(f"{target} would change the size of the tensor that it writes into")
                if memory.inputs:
                    refuse("input resized", self.place())
                state.path = ()
                return kind_of(tensor)
        return memory.base.type

    def _is_written(self, leaf: Any, written: list[torch.Tensor]) -> bool:
        return isinstance(leaf, torch.Tensor) and any(
            leaf is tensor or storage_key(leaf) == storage_key(tensor) for tensor in written
        )

    def _record_inplace_view(self, target: str, arguments: Any, keywords: Any, run: Any) -> Any:
        state = self.state_of(arguments[0])
        before = self.value_of(state.tensor)
        result = run((state.tensor, *arguments[1:]), keywords)
        if kind_of(state.tensor) == before.type:
            return result
        if state in state.memory.inputs:
            refuse("input reshaped in place", self.place())
        step_arguments = (HOLE, *(fill(literal(argument), HOLE) for argument in arguments[1:]))
        step = ViewStep(INPLACE_VIEWS[target], step_arguments, tuple((k, literal(v)) for k, v in keywords.items()))
        entry = PathEntry(step, kind_of(state.tensor))
        state.value, state.version = self._take(before, entry), state.memory.version
        state.path = (*state.path, entry)
        return result


def _written_tensors(
    target: str, operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> list[torch.Tensor]:
    names = written_arguments(target)
    if not names:
        return []
    given = dict(zip((parameter.name for parameter in operator._schema.arguments), arguments, strict=False)) | keywords
    if given.get("training") is False:
        return []  # normalisation writes its running statistics while training alone
    items = [item for name in names for item in flat_results(given.get(name))]
    return [item for item in items if isinstance(item, torch.Tensor)]


def _is_inplace(target: str) -> bool:
    """Whether an operator writes its first argument, and must leave its size alone."""
    name = target.split(".")[1]
    return name.endswith("_") and not name.startswith("resize")
