"""Queue `loss.backward()`, as a step of its segment where it can be one, and answer `p.grad` meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import is_autocast_enabled, is_inference_mode_enabled

from weft.engine import Var
from weft.engine.failures import Damage, PartialFailure
from weft.errors import InternalError
from weft.lazy_tensors.gradients import UNKNOWN_LEAF
from weft.lazy_tensors.operators import getter, setter
from weft.lazy_tensors.schema import CallSchema
from weft.lazy_tensors.segment_plan import backward_schema
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.settings import flushes_denormals, flushing_denormals
from weft.lazy_tensors.tasks import push_task, user_place
from weft.lazy_tensors.tensor import (
    EMPTY,
    LazyStorage,
    LazyTensor,
    LazyValue,
    detached_metadata,
    lazy_tensor,
    metadata_of,
)

BACKWARD_DEFAULTS = {"gradient": None, "create_graph": False, "inputs": None}
_GRADIENTS = SESSION.gradients


def _get(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if tensor.__class__ is LazyTensor:
        return SESSION.now(function, args, kwargs, changes=True)
    return _GRADIENTS.get(tensor)


def _set(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    tensor, gradient = args
    if gradient is not None or tensor.__class__ is LazyTensor:
        SESSION.now(function, args, kwargs, changes=True)
    elif not _GRADIENTS.clear(tensor):
        function(tensor, None)  # nothing queued names it: tasks hold the gradients themselves


def _backward(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    loss = args[0]
    leaves = EMPTY if loss.__class__ is not LazyTensor else _leaves(loss.value)
    if len(args) > 1 or not leaves or not _may_queue(loss, leaves, kwargs):
        SESSION.now(function, args, kwargs, changes=True)
        return
    if not kwargs.get("retain_graph") and _record(loss, leaves):
        return
    SESSION.flush_all()  # among them the tasks that clear gradients: they run whatever becomes of the loss
    value: LazyValue = loss.value
    leaves = _leaves(value)
    reads = {value.storage.variable(): None}
    changed: dict[Var, None] = {}
    writes = {_GRADIENTS.order: None}
    made: list[tuple[torch.Tensor, LazyValue]] = []
    for leaf in leaves:
        reads[SESSION.storages.of(leaf).variable()] = None
        gradient = _GRADIENTS.get(leaf)
        if gradient is None:
            metadata = detached_metadata(leaf)
            assert metadata is not None
            expected = LazyValue(metadata, LazyStorage(), None, -1)
            gradient = lazy_tensor(expected)
            made.append((leaf, expected))
            writes[expected.storage.variable()] = None
        else:
            storage = gradient.value.storage if isinstance(gradient, LazyTensor) else SESSION.storages.of(gradient)
            changed[storage.variable()] = None
        _GRADIENTS.set(leaf, gradient)
    task = _Backward(value, bool(kwargs.get("retain_graph")), made, tuple(changed))
    push_task(task, [*(var for var in reads if var not in writes), *changed], [*writes, *changed], "backward")


# The functions of PyTorch that are handled here.
HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.backward: _backward,
    getter("grad"): _get,
    setter("grad"): _set,
}


def _leaves(value: LazyValue) -> frozenset[torch.Tensor]:
    with SESSION.lock:
        return _GRADIENTS.leaves(value)


def _may_queue(loss: LazyTensor, leaves: frozenset[torch.Tensor], kwargs: dict[str, Any]) -> bool:
    if is_autocast_enabled("cpu") or is_inference_mode_enabled():
        return False  # the operators of a backward are subject to it, too
    plain = all(kwargs.get(name, usual) is usual for name, usual in BACKWARD_DEFAULTS.items())
    if not plain or loss.value.metadata.numel != 1:
        return False
    return all(_is_simple(leaf) for leaf in leaves)


def _record(loss: LazyTensor, found: frozenset[torch.Tensor]) -> bool:
    """Make the backward a step of the recording, if all that it goes through is recorded there."""
    numbers = SESSION.recording().operand_numbers
    if any(id(leaf) not in numbers for leaf in found):
        return False
    # The order decides the structure of the segment: that of a set is another in each run, and for each module.
    leaves = tuple(sorted(found, key=lambda leaf: ~numbers[id(leaf)]))
    if any(_GRADIENTS.get(leaf) is not None for leaf in leaves):
        return False
    schema = backward_schema(tuple(detached_metadata(leaf) for leaf in leaves))  # type: ignore[misc]
    values = _record_step(loss.value, leaves, schema)
    if values is None:
        return False
    for leaf, value in zip(leaves, values, strict=True):
        value.epoch = _GRADIENTS.epoch
        _GRADIENTS.set(leaf, lazy_tensor(value))
    return True


def _record_step(loss: LazyValue, leaves: Sequence[torch.Tensor], schema: CallSchema) -> Sequence[LazyValue] | None:
    with SESSION.lock:
        recording = SESSION.recording()
        if loss.recording is not recording or recording.gradients:
            return None
        numbers = [recording.operand_numbers.get(id(leaf)) for leaf in leaves]
        operands = [number for number in numbers if number is not None]
        if len(operands) < len(leaves) or not recording.node.reached(loss.index) <= set(operands):
            return None  # it goes on into what was computed earlier
        node = recording.node.after(schema, (loss.index, *operands))
        recording.add(node, (), user_place())
        made = []
        for place, (leaf, output) in enumerate(zip(leaves, schema.outputs, strict=True)):
            storage = LazyStorage()
            storage.recording = recording
            assert output.metadata is not None
            gradient = LazyValue(output.metadata, storage, recording, node.first + place)
            recording.hold(gradient)
            recording.gradients.append((leaf, weakref.ref(gradient)))
            made.append(gradient)
        return made


class _Backward:
    """Runs a backward, and gives the values that stand for gradients their tensors."""

    def __init__(
        self, loss: LazyValue, retain: bool, made: list[tuple[torch.Tensor, LazyValue]], changed: tuple[Var, ...]
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
            lost = tuple(value.storage.variable() for _, value in self._made)
            # What is accumulated is as a backward of eager code leaves it.
            raise PartialFailure([Damage(error, lost, self._changed, thread=self._thread)]) from error
        for leaf, value in self._made:
            gradient = leaf.grad
            if gradient is not None and gradient.stride() != value.metadata.strides and gradient.is_contiguous():
                # The strides of dimensions with one element are any; which they are was told before this ran.
                with torch.no_grad():
                    gradient = leaf.grad = gradient.as_strided(value.metadata.shape, value.metadata.strides)
            if gradient is None or metadata_of(gradient) is not value.metadata:
                raise InternalError("a backward gave another kind of gradient than was expected")
            value.real = gradient


def _is_simple(leaf: torch.Tensor) -> bool:
    """Whether a backward does nothing to this leaf but give it a gradient with its own metadata."""
    if leaf is UNKNOWN_LEAF:
        return False
    hooks = leaf._backward_hooks or leaf._post_accumulate_grad_hooks
    return not hooks and leaf.is_contiguous()
