"""Copies between devices in lazy code (`y.to("cpu")`) -> tasks of copy workers, and tensors that stand for the copies.

A copy on one device is an operator like any other: its program computes it on the way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import is_grad_enabled, is_inference_mode_enabled

from weft.engine import Var
from weft.errors import InternalError
from weft.lazy_tensors.table import without_writes
from weft.lazy_tensors.tasks import after_readers, engine, push_copy
from weft.lazy_tensors.tensor import LazyTensor, lazy_tensor
from weft.lazy_tensors.transports import TRANSPORTS, Transport, target_of
from weft.lazy_tensors.values import CPU, Look, Memories, Memory, Value, device_of, look_without_gradient
from weft.trace.interception.capture import traced_elsewhere


class Queue(Protocol):
    """What copies need of the session."""

    memories: Memories

    def queue(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Queue a call as an operator of a segment."""

    def now(self, function: Callable[..., Any], args: Any, kwargs: Any, *, changes: bool) -> Any:
        """Run a call at once."""

    def variables(self, tensor: torch.Tensor) -> list[Var]:
        """What orders tasks that take this tensor; what it needs is pushed."""


class Copies:
    """Calls that move a tensor between the CPU and another device, and calls on tensors of other devices."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def functions(self) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
        """The functions of PyTorch that are handled here."""
        yield torch.Tensor.to, self._to
        yield torch.Tensor.cpu, self._cpu
        yield torch.Tensor.cuda, self._cuda
        yield torch.Tensor.copy_, self._copy_into

    def _to(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        target = target_of(args, kwargs)
        moved = None if target is None else self._moved(args[0], *target)
        return self._queue.queue(function, args, kwargs) if moved is None else moved

    def _cpu(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if len(args) > 1 or kwargs:
            return self._queue.now(function, args, kwargs, changes=False)
        if tensor.__class__ is LazyTensor and tensor.value.look.device == CPU:
            return tensor
        moved = self._moved(tensor, CPU, None)
        return self._queue.now(function, args, kwargs, changes=False) if moved is None else moved

    def _cuda(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        moved = self._moved(args[0], torch.device("cuda"), None) if len(args) == 1 and not kwargs else None
        return self._queue.now(function, args, kwargs, changes=False) if moved is None else moved

    def _moved(self, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> LazyTensor | None:
        """The copy of a tensor on another device, still to come; None if this is no copy that can be queued."""
        transport = _transport(tensor.device, device)
        place = None if transport is None else CPU if device.type == "cpu" else transport.place(device)
        if transport is None or place is None or not self._may_queue(tensor, transport):
            return None
        look = _copied_look(tensor, place, dtype)
        if look is None:
            return None
        value = Value(look, Memory(), None, -1)
        copied = lazy_tensor(value)
        task = _Copy(value, _fetching(transport, tensor, look) if place == CPU else _sending(transport, tensor, look))
        push_copy(task, self._queue.variables(tensor), (value.memory.variable(),), look.bytes)
        return copied

    def _copy_into(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        into, source = (*args, None)[:2]
        plain = len(args) <= 3 and set(kwargs) <= {"non_blocking"} and isinstance(source, torch.Tensor)
        transport = _transport(source.device, into.device) if plain else None
        if transport is None:
            return self._queue.queue(function, args, kwargs)
        simple = into.device == CPU and into.shape == source.shape and not into.requires_grad
        look = _copied_look(source, CPU, None) if simple and self._may_queue(source, transport) else None
        if look is None or self._exported(into):
            return self._queue.now(function, args, kwargs, changes=True)
        writes = self._queue.variables(into)
        reads = [*self._queue.variables(source), *writes]  # a copy that is skipped leaves there what there was
        push_copy(_CopyInto(into, _fetching(transport, source, look)), reads, writes, look.bytes)
        return into

    def _may_queue(self, tensor: torch.Tensor, transport: Transport) -> bool:
        if is_inference_mode_enabled() or traced_elsewhere(()) or (tensor.requires_grad and is_grad_enabled()):
            return False
        if tensor.__class__ is LazyTensor:
            return not self._exported(tensor)
        usual = not (tensor.is_neg() or tensor.is_conj() or tensor.is_inference() or tensor.is_quantized)
        if not usual or tensor.layout is not torch.strided or not transport.takes(tensor) or self._exported(tensor):
            return False
        # Were a spawned function still to write it, what the device has queued so far would not be all of it.
        memory = self._queue.memories.find(tensor)
        return tensor.device == CPU or memory is None or engine().ready(memory.variable())

    def _exported(self, tensor: torch.Tensor) -> bool:
        """Whether code that PyTorch knows nothing of may use the memory of a tensor of the CPU unseen."""
        real = tensor.value.real if tensor.__class__ is LazyTensor else tensor
        return real is not None and real.device == CPU and self._queue.memories.exported(real)

    def elsewhere(self, function: Callable[..., Any], tensors: Sequence[torch.Tensor], kwargs: Any) -> bool:
        """Whether a call of an operator can run at once beside all that is queued, as none of it is on its device.

        Only copies may be reading what it writes, which are waited for.
        """
        if not tensors or any(tensor.__class__ is LazyTensor or device_of(tensor) == CPU for tensor in tensors):
            return False
        if not without_writes(function, kwargs):
            found = (self._queue.memories.find(tensor) for tensor in tensors)
            after_readers([memory for memory in found if memory is not None])
        return True


def _transport(source: torch.device, target: torch.device) -> Transport | None:
    """What moves tensors between two devices one of which is the CPU."""
    if (source.type == "cpu") == (target.type == "cpu"):
        return None
    return TRANSPORTS.get(source.type if target.type == "cpu" else target.type)


def _copied_look(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> Look | None:
    """The look of a copy; None where PyTorch would lay it out in another way."""
    shape, strides = tensor.shape, tensor.stride()
    placeholder = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
    dense = torch.empty_like(placeholder, dtype=dtype)
    return look_without_gradient(dense, device) if dense.stride() == strides else None


def _fetching(transport: Transport, tensor: torch.Tensor, look: Look) -> Callable[[], torch.Tensor]:
    """What copies a tensor of a device, as it is at this call, to the CPU."""
    if tensor.__class__ is not LazyTensor:
        return transport.fetch(tensor, look)
    value = tensor.value

    def fetch_what_arrived() -> torch.Tensor:
        return transport.fetch(_real(value), look)()

    return fetch_what_arrived


def _sending(transport: Transport, tensor: torch.Tensor, look: Look) -> Callable[[], torch.Tensor]:
    """What copies a tensor of the CPU to a device."""
    send = transport.send(look)
    # The value that stands for a lazy source, not its tensor, as a task holds no more than it needs.
    source = tensor.value if tensor.__class__ is LazyTensor else tensor
    return lambda: send(_real(source))


class _Copy:
    """Copies a tensor, unless nobody holds what stands for the copy any more."""

    __name__ = "copy"

    def __init__(self, value: Value, copy: Callable[[], torch.Tensor]) -> None:
        self._value = weakref.ref(value)
        self._copy = copy

    def __call__(self) -> None:
        value = self._value()
        if value is None:
            return
        look = value.look
        with torch.no_grad():
            made = self._copy()
        if made.shape != look.shape or made.stride() != look.strides or made.dtype != look.dtype:
            raise InternalError(f"a copy came as {tuple(made.shape)} {made.stride()} {made.dtype}")
        value.real = made


class _CopyInto:
    """Copies a tensor of another device into one of the CPU."""

    __name__ = "copy_"

    def __init__(self, into: torch.Tensor, copy: Callable[[], torch.Tensor]) -> None:
        self._into = into.value if into.__class__ is LazyTensor else into
        self._copy = copy

    def __call__(self) -> None:
        with torch.no_grad():
            _real(self._into).copy_(self._copy())


def _real(thing: Any) -> torch.Tensor:
    found: torch.Tensor | None = thing.real if thing.__class__ is Value else thing
    if found is None:
        raise InternalError("a copy ran before what it takes was computed")
    return found
