"""Keep which gradients tensors have or will have, and what a backward from a queued result reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.engine import Var
from weft.lazy_tensors.recording import Recording
from weft.lazy_tensors.tasks import push_task
from weft.lazy_tensors.tensor import EMPTY, LazyStorage, LazyTensor, LazyValue
from weft.runtime.linked_results import BY_THE_WAY
from weft.trace.interception.capture import without_functions

MOST_NODES = 10_000  # of an autograd graph that are searched
SPARSE = ("_saved_sparse", "_saved_sparse_grad")  # of nodes whose gradients are sparse tensors
UNKNOWN_LEAF = torch.zeros(())  # stands for leaves of which nothing is known, or that get gradients of another kind


class GradientTable:
    """What `p.grad` is, or will be, for tensors that a queued backward gives gradients to."""

    def __init__(self) -> None:
        # Written by each backward, and read by what changes tensors in place.
        self.order = Var("gradients", only_orders=True)
        self.epoch = 1  # of what autograd graphs reach: code that runs at once may change it
        self._entries: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._cleared: list[torch.Tensor] = []

    def get(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The gradient of an ordinary tensor, maybe still to come."""
        found = self._entries.get(id(tensor))
        return tensor.grad if found is None else found[1]

    def set(self, tensor: torch.Tensor, gradient: torch.Tensor) -> None:
        """Note the gradient that a tensor will have."""
        self._entries[id(tensor)] = (tensor, gradient)

    def clear(self, tensor: torch.Tensor) -> bool:
        """Note that a tensor has no gradient from now on; False if nothing queued names the one that it has."""
        found = self._entries.get(id(tensor))
        if found is None:
            return False
        gradient = found[1]
        recording = gradient.value.recording if isinstance(gradient, LazyTensor) else None
        self._entries[id(tensor)] = (tensor, None)
        if recording is None or recording.closed:
            self._cleared.append(tensor)  # else the gradient never comes to be
        return True

    def flush(self, *, here: bool = False) -> None:
        """Push the clearing of gradients that was asked for, or do it: here, where nothing is queued."""
        cleared, self._cleared = self._cleared, []
        if cleared and here:
            _Clear(cleared)()
        elif cleared:
            push_task(_Clear(cleared), (), (self.order,), "clear gradients")

    def forget(self, *, failed: bool = False) -> None:
        """Everything is done: each tensor has its gradient, but for those that failed, until somebody is told."""
        if failed:
            self._entries.clear()
        elif self._entries:
            self._entries = {number: entry for number, entry in self._entries.items() if _has_failed(entry[1])}

    def any(self) -> bool:
        """Whether there is any that was asked for, and not yet forgotten."""
        return bool(self._entries or self._cleared)

    def storages(self) -> list[LazyStorage]:
        """Those of gradients that failed."""
        gradients = (gradient for _, gradient in self._entries.values())
        return [gradient.value.storage for gradient in gradients if gradient.__class__ is LazyTensor]

    def leaves(self, value: LazyValue) -> frozenset[torch.Tensor]:
        """The leaves that a backward from a result gives gradients to."""
        recording = value.recording
        if recording is not None and not recording.closed:
            return self._recorded(recording, value)
        real = value.real
        return value.leaves if real is None or value.epoch == self.epoch else leaves_of(real)

    def _recorded(self, recording: Recording, value: LazyValue) -> frozenset[torch.Tensor]:
        found = EMPTY
        if value.metadata.requires_grad:
            for number in recording.node.reached(value.index):
                thing = recording.inputs[~number]
                here = self.leaves(thing) if thing.__class__ is LazyValue else leaves_of(thing)
                found = found | here if found else here
        return found

    def note_leaves(self, recording: Recording, alive: Sequence[LazyValue]) -> None:
        """Note what backwards from the results of a recording reach, as it ends."""
        connected = [value for value in alive if value.metadata.requires_grad]
        if connected:
            with without_functions():
                for value in connected:
                    value.leaves = self._recorded(recording, value)
                    value.epoch = recording.epoch


class _Clear:
    """Takes the gradients of some tensors away."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors

    def __call__(self) -> None:
        for tensor in self._tensors:
            tensor.grad = None


def _has_failed(gradient: Any) -> bool:
    variable = gradient.value.storage.var if gradient.__class__ is LazyTensor else None
    return variable is not None and variable.failure is not None


def leaves_of(tensor: torch.Tensor) -> frozenset[torch.Tensor]:
    """The leaves that a backward from an ordinary tensor gives gradients to."""
    if not tensor.requires_grad:
        return EMPTY
    if tensor.is_leaf:
        return frozenset((tensor,))
    found: set[torch.Tensor] = set()
    waiting: list[Any] = [tensor.grad_fn]
    seen: set[Any] = set()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and variable is not BY_THE_WAY:
            found.add(variable)
        if any(getattr(node, name, False) for name in SPARSE):
            found.add(UNKNOWN_LEAF)
        waiting += [following for following, _ in node.next_functions]
    if waiting:
        found.add(UNKNOWN_LEAF)
    return frozenset(found)
