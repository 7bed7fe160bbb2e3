"""`loss.backward()` and `p.grad` in lazy code -> tasks, and tensors that stand for gradients still to come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, Protocol

import torch
from torch import is_autocast_enabled, is_inference_mode_enabled

from weft.engine import Var
from weft.engine.failures import Loss, PartialFailure
from weft.errors import InternalError
from weft.lazy_tensors.backward import backward_form
from weft.lazy_tensors.learning import Form
from weft.lazy_tensors.recording import Recording
from weft.lazy_tensors.settings import flushes_denormals, flushing_denormals
from weft.lazy_tensors.table import getter, setter
from weft.lazy_tensors.tasks import push_task
from weft.lazy_tensors.tensor import LazyTensor, lazy_tensor
from weft.lazy_tensors.values import EMPTY, Memories, Memory, Value, detached_look, look_of
from weft.trace.interception.capture import without_functions

MOST_NODES = 10_000
# Of nodes whose gradients are sparse tensors.
SPARSE = ("_saved_sparse", "_saved_sparse_grad")
_OTHERS = torch.zeros(())  # stands for leaves of which nothing is known, or that get gradients of another kind
BACKWARD_DEFAULTS = {"gradient": None, "create_graph": False, "inputs": None}


class Queue(Protocol):
    """What the gradients need of the session."""

    memories: Memories
    lock: AbstractContextManager[Any]

    def flush_all(self) -> None:
        """Push everything that was recorded."""

    def recording(self) -> Recording:
        """The recording of this thread."""

    def now(self, function: Callable[..., Any], args: Any, kwargs: Any, *, changes: bool) -> Any:
        """Run a call at once."""

    def record_backward(self, loss: LazyTensor, leaves: Sequence[torch.Tensor], form: Form) -> Sequence[Value] | None:
        """Make a backward a step of the recording, if all that it goes through is recorded there."""


class Gradients:
    """What `p.grad` is, or will be, for tensors that a queued backward gives gradients to."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        # Written by each backward, and read by what changes tensors in place.
        self.order = Var("gradients", only_orders=True)
        self.epoch = 1
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._cleared: list[torch.Tensor] = []

    def functions(self) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
        """The functions of PyTorch that are handled here."""
        yield torch.Tensor.backward, self._backward
        yield getter("grad"), self._get
        yield setter("grad"), self._set

    def leaves(self, tensor: torch.Tensor) -> frozenset[torch.Tensor]:
        """The leaves that a backward from a tensor gives gradients to."""
        if tensor.__class__ is not LazyTensor:
            return leaves_of(tensor)
        value: Value = tensor.value
        with self._queue.lock:
            recording = value.recording
            if recording is not None and not recording.closed:
                return self._recorded(recording, value)
        return self._noted(value)

    def _noted(self, value: Value) -> frozenset[torch.Tensor]:
        real = value.real
        return value.leaves if real is None or value.epoch == self.epoch else leaves_of(real)

    def _recorded(self, recording: Recording, value: Value) -> frozenset[torch.Tensor]:
        found = EMPTY
        if value.look.requires_grad:
            for number in recording.point.reached(value.index):
                thing = recording.externals[~number]
                here = self._noted(thing) if thing.__class__ is Value else leaves_of(thing)
                found = found | here if found else here
        return found

    def note_leaves(self, recording: Recording, alive: Sequence[Value]) -> None:
        """Note what backwards from the results of a recording reach, as it ends."""
        connected = [value for value in alive if value.look.requires_grad]
        if connected:
            with without_functions():
                for value in connected:
                    value.leaves = self._recorded(recording, value)
                    value.epoch = recording.epoch

    def _get(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if tensor.__class__ is LazyTensor:
            return self._queue.now(function, args, kwargs, changes=True)
        known = self._known.get(id(tensor))
        return function(tensor) if known is None else known[1]

    def _set(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        tensor, gradient = args
        if gradient is not None or tensor.__class__ is LazyTensor:
            self._queue.now(function, args, kwargs, changes=True)
        elif (known := self._known.get(id(tensor))) is not None:
            handle = known[1]
            recording = handle.value.recording if isinstance(handle, LazyTensor) else None
            if recording is not None and not recording.closed:
                self._known[id(tensor)] = (tensor, None)  # it never comes to be
                return
            self._known[id(tensor)] = (tensor, None)
            self._cleared.append(tensor)
        else:
            function(tensor, None)  # nothing queued names it: tasks hold the gradients themselves

    def _backward(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        loss = args[0]
        leaves = EMPTY if loss.__class__ is not LazyTensor else self.leaves(loss)
        if len(args) > 1 or not leaves or not self._may_queue(loss, leaves, kwargs):
            self._queue.now(function, args, kwargs, changes=True)
            return
        if not kwargs.get("retain_graph") and self._record(loss, leaves):
            return
        self._queue.flush_all()  # among them the tasks that clear gradients: they run whatever becomes of the loss
        memories = self._queue.memories
        value: Value = loss.value
        leaves = self.leaves(loss)
        reads = {value.memory.variable(): None}
        changed: dict[Var, None] = {}
        writes = {self.order: None}
        made: list[tuple[torch.Tensor, Value]] = []
        for leaf in leaves:
            reads[memories.of(leaf).variable()] = None
            gradient = self._get(_plain_gradient, (leaf,), {})
            if gradient is None:
                handle = self._expected(leaf)
                made.append((leaf, handle.value))
                writes[handle.value.memory.variable()] = None
            else:
                lazy = gradient.__class__ is LazyTensor
                memory = gradient.value.memory if lazy else memories.of(gradient)
                changed[memory.variable()] = None
                self._known[id(leaf)] = (leaf, gradient)
        task = _Backward(value, bool(kwargs.get("retain_graph")), made, tuple(changed))
        push_task(task, [*(var for var in reads if var not in writes), *changed], [*writes, *changed], "backward")

    def _record(self, loss: LazyTensor, found: frozenset[torch.Tensor]) -> bool:
        """Make the backward a step of the recording, if all that it goes through is recorded there."""
        known = self._queue.recording().known
        if any(id(leaf) not in known for leaf in found):
            return False
        # The order decides the structure of the segment: that of a set is another in each run, and for each module.
        leaves = tuple(sorted(found, key=lambda leaf: ~known[id(leaf)]))
        if any(self._get(_plain_gradient, (leaf,), {}) is not None for leaf in leaves):
            return False
        looks = tuple(detached_look(leaf) for leaf in leaves)
        values = self._queue.record_backward(loss, leaves, backward_form(looks))  # type: ignore[arg-type]
        if values is None:
            return False
        for leaf, value in zip(leaves, values, strict=True):
            value.epoch = self.epoch
            self._known[id(leaf)] = (leaf, lazy_tensor(value))
        return True

    def _may_queue(self, loss: LazyTensor, leaves: frozenset[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        if is_autocast_enabled("cpu") or is_inference_mode_enabled():
            return False  # the operators of a backward are subject to it, too
        plain = all(kwargs.get(name, usual) is usual for name, usual in BACKWARD_DEFAULTS.items())
        if not plain or loss.value.look.numel != 1:
            return False
        return all(_is_simple(leaf) for leaf in leaves)

    def _expected(self, leaf: torch.Tensor) -> LazyTensor:
        look = detached_look(leaf)
        assert look is not None
        handle = lazy_tensor(Value(look, Memory(), None, -1))
        self._known[id(leaf)] = (leaf, handle)
        return handle

    def _take_cleared(self) -> list[torch.Tensor]:
        cleared, self._cleared = self._cleared, []
        return cleared

    def flush(self, *, here: bool = False) -> None:
        """Push what was asked for and not yet pushed, or do it: here, where nothing is queued."""
        if self._cleared and here:
            _Clear(self._take_cleared())()
        elif self._cleared:
            push_task(_Clear(self._take_cleared()), (), (self.order,), "clear gradients")

    def forget(self, *, failed: bool = False) -> None:
        """Everything is done: each tensor has its gradient, but for those that failed, until somebody is told."""
        if failed:
            self._known.clear()
        elif self._known:
            self._known = {number: known for number, known in self._known.items() if _has_failed(known[1])}

    def any(self) -> bool:
        """Whether there is any that was asked for, and not yet forgotten."""
        return bool(self._known or self._cleared)

    def memories(self) -> list[Memory]:
        """Those of gradients that failed."""
        handles = (handle for _, handle in self._known.values())
        return [handle.value.memory for handle in handles if handle.__class__ is LazyTensor]


class _Clear:
    """Takes the gradients of some tensors away."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors

    def __call__(self) -> None:
        for tensor in self._tensors:
            tensor.grad = None


class _Backward:
    """Runs a backward, and gives the values that stand for gradients their tensors."""

    def __init__(
        self, loss: Value, retain: bool, made: list[tuple[torch.Tensor, Value]], changed: tuple[Var, ...]
    ) -> None:
        self._loss = loss
        self._retain = retain
        self._made = made
        self._changed = changed  # the variables of gradients that are accumulated
        self._thread = get_ident()
        self._flushes = flushes_denormals()

    def __call__(self) -> None:
        loss = self._loss.real
        if loss is None:
            raise InternalError("a backward ran before its loss was computed")
        try:
            with flushing_denormals(self._flushes):
                loss.backward(retain_graph=self._retain)
        except Exception as error:
            lost = tuple(value.memory.variable() for _, value in self._made)
            # What is accumulated is as a backward of eager code leaves it.
            raise PartialFailure([Loss(error, lost, self._changed, thread=self._thread)]) from error
        for leaf, value in self._made:
            gradient = leaf.grad
            if gradient is not None and gradient.stride() != value.look.strides and gradient.is_contiguous():
                # The strides of dimensions with one element are any; which they are was told before this ran.
                with torch.no_grad():
                    gradient = leaf.grad = gradient.as_strided(value.look.shape, value.look.strides)
            if gradient is None or look_of(gradient) is not value.look:
                raise InternalError("a backward gave another kind of gradient than was expected")
            value.real = gradient


def _has_failed(gradient: Any) -> bool:
    variable = gradient.value.memory.var if gradient.__class__ is LazyTensor else None
    return variable is not None and variable.failure is not None


def _plain_gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad


def _is_simple(leaf: torch.Tensor) -> bool:
    """Whether a backward does nothing to this leaf but give it a gradient of its own look."""
    if leaf is _OTHERS:
        return False
    hooks = leaf._backward_hooks or leaf._post_accumulate_grad_hooks
    return not hooks and leaf.is_contiguous()


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
        if variable is not None:
            found.add(variable)
        if any(getattr(node, name, False) for name in SPARSE):
            found.add(_OTHERS)
        waiting += [following for following, _ in node.next_functions]
    if waiting:
        found.add(_OTHERS)
    return frozenset(found)
