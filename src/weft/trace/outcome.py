"""What a traced function returned and wrote -> the results and writes of a Graph, with who shares memory with whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from weft.ir.calls import HOLE, ViewStep
from weft.ir.graph import Result, Write
from weft.trace.memory import Memory, TensorState
from weft.trace.recorder import Recorder


@dataclass(frozen=True, slots=True, eq=False)
class TracedResult:
    """One returned tensor: its place in the Graph, whether it carries a gradient, the tensor to differentiate."""

    result: Result
    requires_grad: bool
    root: torch.Tensor | None


def outcome(recorder: Recorder, leaves: list[Any]) -> tuple[list[TracedResult | Any], list[Write]]:
    """Describe what the function returned (tensors as TracedResult, other leaves as they are) and what it wrote."""
    states = {id(leaf): recorder.state_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    owners = Counter(id(state.memory) for state in states.values())
    described = [
        _describe(recorder, states[id(leaf)], owners[id(states[id(leaf)].memory)]) if id(leaf) in states else leaf
        for leaf in leaves
    ]
    return described, recorder.writes()


def _describe(recorder: Recorder, state: TensorState, owners: int) -> TracedResult:
    tensor, memory = state.tensor, state.memory
    if memory.inputs:
        return TracedResult(_view_of_input(state), tensor.requires_grad, None)
    first = memory.first
    # A view that carries a gradient is taken outside the autograd node: writing into it must be allowed, as in eager.
    alone = owners == 1 and not (state.path and tensor.requires_grad)
    if alone or first is None or first.path:
        return TracedResult(Result(recorder.value_of(tensor)), tensor.requires_grad, tensor)
    path = tuple(entry.step for entry in state.path)
    return TracedResult(Result(memory.base, path), tensor.requires_grad, first.tensor)


def _view_of_input(state: TensorState) -> Result:
    source = state.anchor or state
    if source in state.memory.inputs:
        return Result(source.input_value(), tuple(entry.step for entry in state.path))
    window = state.tensor
    step = ViewStep(
        "aten.as_strided.default", (HOLE, tuple(window.shape), tuple(window.stride()), window.storage_offset())
    )
    return Result(state.memory.inputs[0].input_value(), (step,))


def written_inputs(memories: list[Memory]) -> list[TensorState]:
    """The inputs whose memory the function wrote."""
    return [memory.inputs[0] for memory in memories if memory.inputs and memory.version]
