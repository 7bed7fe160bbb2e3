"""Describe what a traced function returned and wrote, with who shares memory with whom, as results and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from weft.ir.graph import Result, Write
from weft.ir.library import HOLE, ViewStep
from weft.trace.interception.capture import has_gradient_hooks
from weft.trace.interception.refusals import refuse
from weft.trace.memory import TensorState, TracedMemory
from weft.trace.recorder import Recorder

DETACH = "aten.detach.default"
PARTING = frozenset({"aten._unsafe_view.default", "aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default"})
"""Views that are none for autograd: what is written into them has no gradient by the tensor that they are of."""


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
    roots = _roots(recorder, states.values())
    own = {key for key, state in states.items() if _has_backward_of_its_own(recorder, state)}
    described: list[TracedResult | Any] = []
    for leaf in leaves:
        state = states.get(id(leaf))
        if state is None:
            described.append(leaf)
        elif id(leaf) in own:
            described.append(_differentiated(recorder, state))
        else:
            described.append(_describe(recorder, state, roots.get(id(state.memory)), owners[id(state.memory)]))
    return described, recorder.writes()


def _has_backward_of_its_own(recorder: Recorder, state: TensorState) -> bool:
    """Whether a gradient changes on its way from a view to the memory that it looks into.

    Autograd, which takes views outside the program, would not know: of a function with a backward of the user's that
    gives its argument (a reversed gradient, a module's hook), or of a hook on a view.
    """
    tensor, memory = state.tensor, state.memory
    if not tensor.requires_grad or not (state.path or memory.inputs):
        return False
    starts = [entry.tensor.grad_fn for entry in (*memory.inputs, memory.first) if entry is not None]
    node: Any = tensor.grad_fn
    for _ in range(len(state.path) + 1):
        if node is None or node in starts:
            break
        if isinstance(node, BackwardCFunction):
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return any(
        other.memory is memory and other not in memory.inputs and other is not memory.first
        for other in recorder.states.values()
        if has_gradient_hooks(other.tensor)
    )


def _differentiated(recorder: Recorder, state: TensorState) -> TracedResult:
    """A result that its program differentiates: in memory of its own, as eager forbids writes to such views."""
    return TracedResult(Result(recorder.copy(recorder.value_of(state.tensor))), True, state.tensor)


def _describe(recorder: Recorder, state: TensorState, root: TensorState | None, owners: int) -> TracedResult:
    tensor, memory = state.tensor, state.memory
    if memory.inputs:
        if tensor.grad_fn is not None and any(entry.step.target == DETACH for entry in state.path):
            refuse("detached gradient", memory.base.place)  # what was written behind it, taken outside, would be lost
        return TracedResult(_view_of_input(state), tensor.requires_grad, None)
    if root is None or state.path[: len(root.path)] != root.path:
        root = memory.first
    rest = state.path[len(root.path) :] if root is not None and root is not memory.first else state.path
    # A view that carries a gradient is taken outside the autograd node: writing into it must be allowed, as in eager.
    alone = owners == 1 and not (rest and tensor.requires_grad)
    if alone or root is None or (root is memory.first and root.path):
        return TracedResult(Result(recorder.value_of(tensor)), tensor.requires_grad, tensor)
    path = tuple(entry.step for entry in rest)
    return TracedResult(Result(recorder.value_of(root.tensor), path), tensor.requires_grad, root.tensor)


def _roots(recorder: Recorder, states: Iterable[TensorState]) -> dict[int, TensorState]:
    """By memory: the tensor whose gradient is that of the results in it.

    It is the one that was detached last on the way, or the first there was: factories detach what they give, so memory
    that torch.zeros made, and that a write gave a gradient, has such a root. What `reshape` copied, and was written
    into since, has another one.
    """
    found: dict[int, TensorState] = {}
    for state in states:
        memory = state.memory
        if not state.tensor.requires_grad or memory.inputs or memory.first is None or memory.first.path:
            continue
        parting = {DETACH, *PARTING} if memory.version else {DETACH}
        detached = [index for index, entry in enumerate(state.path) if entry.step.target in parting]
        path = state.path[: detached[-1] + 1] if detached else ()
        of_memory = (other for other in recorder.states.values() if other.memory is memory)
        root = next((other for other in of_memory if other.path == path and other.tensor.requires_grad), state)
        if found.setdefault(id(memory), root).path != root.path:
            refuse("detached gradient", memory.base.place)
    return found


def _view_of_input(state: TensorState) -> Result:
    source = state.anchor or state
    if source in state.memory.inputs:
        return Result(source.input_value(), tuple(entry.step for entry in state.path))
    window = state.tensor
    step = ViewStep(
        "aten.as_strided.default", (HOLE, tuple(window.shape), tuple(window.stride()), window.storage_offset())
    )
    return Result(state.memory.inputs[0].input_value(), (step,))


def written_inputs(memories: list[TracedMemory]) -> list[TensorState]:
    """The inputs whose memory the function wrote."""
    return [memory.inputs[0] for memory in memories if memory.inputs and memory.version]
