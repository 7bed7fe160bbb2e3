"""Queue an operator as a task: what it reads and writes, what it gives, and how it is recorded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.mx.arrays import queue
from weft.mx.arrays.at_once import (
    CallKind,
    PreparedCall,
    Types,
    array_class,
    keep_kind,
    kind_key,
    kind_of,
)
from weft.mx.arrays.handle import Chunk, Handle
from weft.mx.arrays.tape import Entry, TapeNode, entry_to_record, modes
from weft.mx.base.context import Context, current_context, from_text
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import Operator, OperatorRule, Shape, operator
from weft.trace.interception.modes import operators_are_plain

if TYPE_CHECKING:
    from weft.mx.arrays.ndarray import NDArray


def new_array(chunk: Chunk, shape: Shape, dtype: torch.dtype, like: Sequence[Handle] = ()) -> NDArray:
    """An array of the class that users see, of results of such arrays."""
    made: NDArray = array_class(like)(chunk, shape, dtype)
    return made


class OperatorTask:
    """The task of one operator: reads its inputs, computes, writes its outputs."""

    __slots__ = ("changes", "entries", "inputs", "kind", "makes", "node", "outputs", "p", "rule", "shares")

    def __init__(
        self, rule: OperatorRule, p: Any, inputs: Sequence[Handle], entries: Sequence[Entry | None] | None
    ) -> None:
        self.rule = rule
        self.p = p
        self.inputs = inputs
        self.entries = entries  # where the inputs stand in the graph, if this is recorded
        self.node: TapeNode | None = None
        self.outputs: Sequence[Handle] = ()
        self.kind: CallKind | None = None
        self.makes: Context | None = None
        self.changes: Sequence[Tensor] = ()
        self.shares = False  # whether outputs are parts of the input's memory, which need not be written

    def __call__(self) -> None:
        """Run it, and note what it takes of this thread's time: how long it waits for others does not count."""
        kind = self.kind
        if kind is None or not kind.is_timed:
            self._run()
            return
        began = time.thread_time()
        self._run()
        kind.note(time.thread_time() - began)

    def _run(self) -> None:
        rule = self.rule
        if self.entries is not None:
            with torch.enable_grad():
                tensors = [
                    array.shared() if entry is None else entry[0].value(entry[1])
                    for array, entry in zip(self.inputs, self.entries, strict=True)
                ]
                results = self._computed(tensors)
        else:
            tensors = [array.raw() for array in self.inputs]
            results = self._computed(tensors)
        made = results if isinstance(results, (tuple, list)) else (results,)
        outputs = self.outputs
        node = self.node
        for array, result in zip(() if self.shares else outputs, made, strict=False):
            aliased = node is not None
            if not aliased and (result._base is not None or any(result is tensor for tensor in tensors)):
                aliased = True
                for source in self.inputs:
                    source._chunk.aliased = True
            array.write(result, aliased=aliased)
        if node is not None:
            node.values = made[: len(outputs)]
        changed = made[len(outputs) :]
        if rule.writes:
            for place, result in zip(rule.written_inputs(self.p), changed, strict=True):
                self.inputs[place].write(result)
        elif changed:
            self.changes = changed
        self.inputs = ()

    def _computed(self, tensors: Sequence[Tensor]) -> Any:
        rule = self.rule
        if self.makes is not None and self.makes.device_type == "gpu":
            with self.makes.torch_device:
                return self._with_generator(tensors)
        return self._with_generator(tensors) if rule.random else rule.compute(self.p, *tensors)

    def _with_generator(self, tensors: Sequence[Tensor]) -> Any:
        if not self.rule.random:
            return self.rule.compute(self.p, *tensors)
        return self.rule.compute(self.p, queue.generator_of(self.outputs[0].context), *tensors)


def call_kind(rule: OperatorRule, name: str, p: Any, inputs: Sequence[Handle]) -> CallKind:
    """The kind of a call: sizes and types of results are found by running it once on tensors without elements."""
    key = kind_key(rule, p, inputs)
    found = kind_of(key)
    return found if found is not None else keep_kind(key, infer_types(rule, name, p, key[2:]))


def infer_types(
    rule: OperatorRule, name: str, p: Any, given: Sequence[tuple[Shape, torch.dtype]]
) -> tuple[tuple[Shape, torch.dtype], ...]:
    """The sizes and types of results for inputs of these."""
    if not rule.mixed:
        for place, (_, dtype) in enumerate(given):
            if dtype != given[0][1]:
                expected, got = (str(kind).removeprefix("torch.") for kind in (given[0][1], dtype))
                raise MXNetError(
                    f"Error in operator {name}: Check failed: assign(&dattr, vec.at(i)): Incompatible attr in node "
                    f"at {place}-th input: expected {expected}, got {got}"
                )
    try:
        tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in given]
        with torch.no_grad(), torch.device("meta"):
            results = rule.compute(p, None, *tensors) if rule.random else rule.compute(p, *tensors)
    except MXNetError as error:
        raise type(error)(f"Error in operator {name}: {error}") from error
    except (RuntimeError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise MXNetError(f"Error in operator {name}: {str(error).partition('Exception raised from')[0]}") from error
    made = results if isinstance(results, (tuple, list)) else (results,)
    return tuple((tuple(result.shape), result.dtype) for result in made[: rule.output_count(p)])


def invoke(
    rule: OperatorRule, name: str, p: Any, inputs: Sequence[Handle], out: Sequence[Handle] | None = None
) -> list[NDArray]:
    """Queue an operator; gives its outputs, whose sizes are known."""
    if rule.modal and modes.training:
        p = p._replace(train=True)
    if out is None and rule.is_plain and inputs and not modes.recording:
        done = PreparedCall(rule, p).run(inputs)
        if done is not None:
            return done
    entries = _recorded_entries(inputs)
    context = inputs[0].context if inputs else current_context()
    call = OperatorTask(rule, p, inputs, entries)
    if rule.creates:
        text = getattr(p, "ctx", "")
        call.makes = context = from_text(text) if text else context
        _ = context.torch_device  # an error of the call, if there is no such device
    types = _types_of(call, name)
    if out is None:
        make = array_class(inputs)
        outputs = [make(Chunk(context), shape, dtype) for shape, dtype in types]
    else:
        outputs = list(out)
        _check_out(name, outputs, types)
    for array in outputs if out is not None else ():
        array.written()
    call.outputs = outputs
    if entries is not None:
        record(call, [entry[0] for entry in entries if entry is not None])
    reads = [array._chunk.variable for array in inputs]
    writes = [array._chunk.variable for array in outputs]
    for place in rule.written_inputs(p) if rule.writes else ():
        inputs[place].written()
        writes.append(inputs[place].order)
    if rule.random:
        writes.append(queue.random_state(outputs[0].context))
    is_cheap = call.kind is not None and call.kind.cheap and not rule.by_program and operators_are_plain()
    (queue.push_cheap if is_cheap else queue.push)(call, reads, writes, name)
    return outputs


def _recorded_entries(inputs: Sequence[Handle]) -> list[Entry | None] | None:
    """Where inputs stand in the graph, if the call is to be recorded."""
    if not modes.recording:
        return None
    found = [entry_to_record(array) for array in inputs]
    return found if any(entry is not None for entry in found) else None


def _types_of(call: OperatorTask, name: str) -> Types:
    """The sizes and types of a call's results."""
    rule, p, inputs = call.rule, call.p, call.inputs
    if rule.by_value:
        queue.wait(*[array.order for array in inputs])
        made = rule.compute(p, *[array.raw() for array in inputs])
        return ((tuple(made.shape), made.dtype),)
    call.kind = call_kind(rule, name, p, inputs)
    return call.kind.types


def _check_out(name: str, outputs: Sequence[Handle], types: Sequence[tuple[Shape, torch.dtype]]) -> None:
    for array, (shape, _) in zip(outputs, types, strict=False):
        if array.shape != shape:
            raise MXNetError(f"Error in operator {name}: the result has shape {list(shape)}, out={list(array.shape)}")


def record(call: OperatorTask, parents: Sequence[TapeNode]) -> None:
    """Let the outputs of a call stand in the graph."""
    node = call.node = TapeNode(parents)
    node.versions = tuple(array.version for array in call.outputs)
    for place, array in enumerate(call.outputs):
        array.entry = (node, place)
    if call.rule.aux and call.p is not None and call.p.train:
        targets, heads = [call.inputs[place] for place in call.rule.aux], call.outputs

        def push_updates() -> None:
            def write() -> None:
                for target, tensor in zip(targets, call.changes, strict=False):
                    target.write(tensor)

            for target in targets:
                target._chunk.version += 1
            queue.push(write, [heads[0].order], [target.order for target in targets], "moving averages")

        node.updates = push_updates


def record_part(source: Handle, part: Handle, rule: OperatorRule, p: Any) -> None:
    """Record that an array is a part of another one's memory, which an operator computes for the graph alone.

    The task counts as a write: whoever reads the part waits until it stands in the graph.
    """
    entry = entry_to_record(source)
    assert entry is not None
    call = OperatorTask(rule, p, [source], [entry])
    call.shares = True
    call.outputs = [part]
    record(call, [entry[0]])
    queue.push(call, [source.order], [source.order], "part")


def call_operator(row: Operator, arrays: Sequence[Handle], given: Mapping[str, Any], out: Any = None) -> Any:
    """OperatorTask an operator with arrays and parameters as MXNet's functions take them."""
    p = row.values(
        {**given, row.counter: len(arrays)} if row.counter in row.parameters and row.counter not in given else given
    )
    rule = row.rule
    if not row.variadic and len(arrays) != (wanted := row.input_count(p)):
        raise MXNetError(
            f"Check failed: num_inputs == infered_num_inputs ({len(arrays)} vs. {wanted}) : Operator {row.name} "
            f"expects {wanted} inputs, but got {len(arrays)} instead."
        )
    outs = None if out is None else list(out) if isinstance(out, (list, tuple)) else [out]
    results = invoke(rule, row.name, p, arrays, outs)
    return results[0] if len(results) == 1 else results


def invoke_one(name: str, *arrays: Handle, out: Handle | None = None, **given: Any) -> NDArray:
    """OperatorTask an operator that has one output."""
    found: NDArray = call_operator(operator(name), arrays, given, out)
    return found
