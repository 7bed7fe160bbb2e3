"""Record operators for gradients, as MXNet does: arrays carry entries of a graph, and a backward writes `grad`.

The graph that is differentiated is torch's own, made by the tasks that run the operators. Kept here is only what must
be known when nothing has run yet: which variables a backward reaches, and that a graph is used up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError

if TYPE_CHECKING:
    from weft.mx.arrays.handle import Handle

NOT_RECORDED = (
    "Check failed: !AGInfo::IsNone(*i): Cannot differentiate node because it is not in a computational graph. You need "
    "to set is_recording to true or use autograd.record() to save computational graphs for backward. If you want to "
    "differentiate the same graph twice, you need to pass retain_graph=True to backward."
)
IN_GRAPH = (
    "Check failed: AGInfo::IsNone(*output): Assigning to NDArrays that are already in a computational graph will cause "
    "undefined behavior when evaluating gradients. Please call backward first to clear the graph or do this out side "
    "of a record section. Also note that you cannot use inplace operations like +=, *=, relu(x, out=x), y[idx]=x, etc "
    "inside a record section."
)


class _Modes(threading.local):
    """Whether this thread records, and whether it trains."""

    recording = False
    training = False


modes = _Modes()


class TapeNode:
    """One recorded operator: its results as torch has them, once its task has run."""

    __slots__ = ("parents", "updates", "used_up", "values", "versions")

    def __init__(self, parents: Sequence[TapeNode]) -> None:
        self.parents = parents
        self.values: Sequence[Tensor] | None = None
        self.versions: tuple[int, ...] = ()  # of the arrays it made: one that was written since is another
        self.used_up = False
        self.updates: Callable[[], None] | None = None  # pushes what a backward through it changes besides gradients

    def value(self, place: int) -> Tensor:
        """One of its results."""
        if self.values is None:
            raise MXNetError("the operator that was recorded here failed, or its graph is used up")
        return self.values[place]


_FIRST = threading.Lock()  # On the other side: another task that first reads the same variable; it waits for nothing.


class VariableVersion(TapeNode):
    """A variable as it is read between two writes to it."""

    __slots__ = ("array", "variable")

    def __init__(self, array: Handle, variable: Variable) -> None:
        super().__init__(())
        self.array = array
        self.variable = variable

    def value(self, place: int) -> Tensor:
        """The variable's elements, which ask for a gradient."""
        with _FIRST:
            if self.values is None:
                found = self.array.shared().detach()
                self.values = (found.requires_grad_() if found.is_floating_point() else found,)
            return self.values[place]


class Variable:
    """What makes an array one that gradients are for: where they go, and how."""

    __slots__ = ("fresh", "grad", "leaf", "request")

    def __init__(self, grad: Handle | None, request: str) -> None:
        self.grad = grad
        self.request = request
        self.leaf: VariableVersion | None = None
        self.fresh = False  # whether a backward wrote the gradient since somebody asked

    def leaf_of(self, array: Handle) -> VariableVersion:
        """The node of the array as it is now."""
        leaf, version = self.leaf, array.version
        if leaf is None or leaf.versions[0] != version:
            leaf = self.leaf = VariableVersion(array, self)
            leaf.versions = (version,)
        return leaf


Entry = tuple[TapeNode, int]


def entry_of(array: Handle) -> Entry | None:
    """Where an array stands in the graph, if it does."""
    variable = array.variable
    if variable is not None:
        return (variable.leaf_of(array), 0) if variable.request != "null" else None
    entry = array.entry
    if entry is None or entry[0].used_up:
        return None
    return entry


def entry_to_record(array: Handle) -> Entry | None:
    """Where what is recorded now finds an array in the graph; one that was written since is a constant."""
    entry = entry_of(array)
    return entry if entry is not None and entry[0].versions[entry[1]] == array.version else None


def reached(nodes: Iterable[TapeNode]) -> list[TapeNode]:
    """The nodes that a backward from some goes through."""
    found = dict.fromkeys(nodes)
    waiting = list(found)
    while waiting:
        for parent in waiting.pop().parents:
            if parent not in found:
                found[parent] = None
                waiting.append(parent)
    return list(found)


class BackwardTask:
    """The task that computes gradients of some leaves, and gives them on."""

    def __init__(
        self, entries: Sequence[Entry], head_grads: Sequence[Handle | None], leaves: Sequence[TapeNode]
    ) -> None:
        self.entries = entries
        self.head_grads = head_grads
        self.leaves = leaves
        self.used_up: Sequence[TapeNode] = ()
        self.keeps_graph = False
        self.creates_graph = False
        self.deliver: Callable[[Sequence[Tensor]], None] = _nowhere

    def __call__(self) -> None:
        """Compute them."""
        with torch.enable_grad():
            found = self.gradients()
        self.deliver(found)
        for node in self.used_up:
            if not isinstance(node, VariableVersion):
                node.values = None

    def gradients(self) -> list[Tensor]:
        """The gradients of the leaves; 0 of those that nothing reaches."""
        heads, grads = [], []
        for (node, place), given in zip(self.entries, self.head_grads, strict=True):
            head = node.value(place)
            if head.requires_grad:
                heads.append(head)
                grads.append(
                    torch.ones_like(head) if given is None else self._given(given).reshape(head.shape).to(head.dtype)
                )
        leaves = [leaf.value(0) for leaf in self.leaves]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        made: Sequence[Any] = ()
        if heads and wanted:
            made = torch.autograd.grad(
                heads,
                wanted,
                grads,
                retain_graph=self.keeps_graph or self.creates_graph,
                create_graph=self.creates_graph,
                allow_unused=True,
            )
        if self.creates_graph:
            made = [grad.to_dense() if grad is not None and grad.is_sparse else grad for grad in made]
        by_leaf = {id(leaf): grad for leaf, grad in zip(wanted, made, strict=True)} if made else {}
        return [torch.zeros_like(leaf) if by_leaf.get(id(leaf)) is None else by_leaf[id(leaf)] for leaf in leaves]

    def _given(self, given: Handle) -> Tensor:
        entry = entry_to_record(given) if self.creates_graph else None
        return given.raw() if entry is None else entry[0].value(entry[1])


def _nowhere(_gradients: Sequence[Tensor]) -> None:
    """Keep nothing."""
