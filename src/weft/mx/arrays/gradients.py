"""Queue backwards: gradients of what was recorded, written into `grad` or given as new arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from weft.mx.arrays import queue
from weft.mx.arrays.handle import Chunk, Handle
from weft.mx.arrays.invoke import new_array
from weft.mx.arrays.tape import NOT_RECORDED, BackwardTask, TapeNode, VariableVersion, entry_of, reached
from weft.mx.base.errors import MXNetError

if TYPE_CHECKING:
    from weft.mx.arrays.ndarray import NDArray


def backward(
    heads: Sequence[Handle],
    head_grads: Sequence[Handle | None] | None = None,
    retain_graph: bool = False,
    train_mode: bool = True,  # noqa: ARG001  # operators noted it when they were recorded
) -> None:
    """Write gradients of what the heads were made of into `grad` of the variables."""
    task, nodes = _backward_task(heads, head_grads)
    targets = [leaf.variable for leaf in task.leaves if isinstance(leaf, VariableVersion)]
    task.keeps_graph = retain_graph
    grads: list[Handle] = []
    for variable in targets:
        assert variable.grad is not None
        variable.grad._chunk.version += 1
        variable.fresh = True
        grads.append(variable.grad)

    def deliver(found: Sequence[Tensor]) -> None:
        written: set[int] = set()
        for variable, grad, tensor in zip(targets, grads, found, strict=True):
            # A variable that was written while it was recorded has several leaves: what they get is added.
            if variable.request == "add" or id(variable) in written:
                grad.write(grad.raw() + tensor)
            else:
                grad.write(tensor, aliased=True)
            written.add(id(variable))

    task.deliver = deliver
    _push_backward(task, heads, grads)
    _finish_graph(nodes, retain_graph)


def _finish_graph(nodes: Sequence[TapeNode], retain_graph: bool) -> None:
    for node in nodes:
        if node.updates is not None:
            node.updates()
            node.updates = None
    if not retain_graph:
        for node in nodes:
            if not isinstance(node, VariableVersion):
                node.used_up = True
                node.parents = ()


def _backward_task(
    heads: Sequence[Handle], head_grads: Sequence[Handle | None] | None
) -> tuple[BackwardTask, list[TapeNode]]:
    entries = []
    for head in heads:
        entry = entry_of(head)
        if entry is None:
            raise MXNetError(NOT_RECORDED)
        entries.append(entry)
    given = list(head_grads) if head_grads is not None else [None] * len(heads)
    if len(given) != len(heads):
        raise MXNetError(f"{len(heads)} heads were given {len(given)} gradients")
    nodes = reached(entry[0] for entry in entries)
    leaves = [node for node in nodes if isinstance(node, VariableVersion) and node.variable.request != "null"]
    task = BackwardTask(entries, given, leaves)
    return task, nodes


def _push_backward(task: BackwardTask, heads: Sequence[Handle], writes: Sequence[Handle]) -> None:
    sources = [*heads, *[given for given in task.head_grads if given is not None]]
    # The variables, too: a leaf that no task has read yet takes its elements now.
    sources += [leaf.array for leaf in task.leaves if isinstance(leaf, VariableVersion)]
    queue.push(task, [array.order for array in sources], [array.order for array in writes], "backward")


def gradients(
    heads: Sequence[Handle],
    variables: Sequence[Handle],
    head_grads: Sequence[Handle | None] | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> list[NDArray]:
    """New arrays with the gradients of some variables."""
    task, nodes = _backward_task(heads, head_grads)
    leaves: list[VariableVersion] = []
    for place, array in enumerate(variables):
        if array.variable is None:
            raise MXNetError(
                "Check failed: !AGInfo::IsNone(*variables[i]) && AGInfo::IsVariable(variables[i]->entry_.node): Cannot "
                f"differentiate with respect to the {place + 1}-th variable because it does not require gradient."
            )
        leaves.append(array.variable.leaf_of(array))
    task.leaves = leaves
    task.keeps_graph, task.creates_graph = retain_graph, create_graph
    made = [new_array(Chunk(array.context), array.shape, array._dtype, [array]) for array in variables]
    node = TapeNode([entry[0] for entry in task.entries] + list(leaves)) if create_graph else None

    def deliver(found: Sequence[Tensor]) -> None:
        for array, tensor in zip(made, found, strict=True):
            array.write(tensor, aliased=True)
        if node is not None:
            node.values = tuple(found)

    task.deliver = deliver
    if node is not None:
        node.versions = (0,) * len(made)
        for place, array in enumerate(made):
            array.entry = (node, place)
    _push_backward(task, heads, made)
    _finish_graph(nodes, retain_graph or create_graph)
    return made
