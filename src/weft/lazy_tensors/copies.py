"""Copy tensors between devices in tasks of copy workers, with lazy tensors that stand for the copies.

A copy on one device is an operator like any other: its program computes it on the way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import is_grad_enabled, is_inference_mode_enabled

from weft.errors import InternalError
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tasks import engine, push_copy
from weft.lazy_tensors.tensor import (
    CPU,
    PLAIN,
    LazyStorage,
    LazyTensor,
    LazyValue,
    TensorMetadata,
    detached_metadata_on,
    lazy_tensor,
)
from weft.trace.interception.capture import traced_elsewhere


class Transport:
    """Moves tensors of one kind of device.

    `send` and `fetch` are called where the copy is asked for, and what they give by a worker. This class knows nothing
    of its device, and lets PyTorch copy when the worker comes to it.
    """

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is of a class that can be copied so."""
        return tensor.__class__ in PLAIN

    def place(self, device: torch.device) -> torch.device | None:
        """The very device that a name means; None if it is not here."""
        return device

    def fetch(self, tensor: torch.Tensor, metadata: TensorMetadata) -> Callable[[], torch.Tensor]:
        """What copies a tensor of the device, as it is now, to the CPU."""
        return lambda: tensor.to(metadata.device, metadata.dtype, copy=True)

    def send(self, metadata: TensorMetadata) -> Callable[[torch.Tensor], torch.Tensor]:
        """What copies a tensor of the CPU to the device."""
        return lambda tensor: tensor.to(metadata.device, metadata.dtype, copy=True)


class CudaTransport(Transport):
    """Copies on a stream of their own, from and to memory that the GPU reaches by itself."""

    def __init__(self) -> None:
        self._streams: dict[int, torch.cuda.Stream] = {}

    def place(self, device: torch.device) -> torch.device | None:
        """The very device that a name means; None if it is not here."""
        if not torch.cuda.is_available():
            return None
        named: int | None = device.index
        index = torch.cuda.current_device() if named is None else named
        return torch.device("cuda", index) if index < torch.cuda.device_count() else None

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        return self._streams.setdefault(device.index, torch.cuda.Stream(device))

    def fetch(self, tensor: torch.Tensor, metadata: TensorMetadata) -> Callable[[], torch.Tensor]:
        """What copies a tensor of the device, as it is now, to the CPU."""
        # What is queued on the GPU later than this call must not hold the copy up.
        computed = torch.cuda.current_stream(tensor.device).record_event()

        def copy() -> torch.Tensor:
            made = torch.empty_strided(metadata.shape, metadata.strides, dtype=metadata.dtype, pin_memory=True)
            stream = self._stream(tensor.device)
            with torch.cuda.stream(stream):
                stream.wait_event(computed)
                made.copy_(tensor, non_blocking=True)
                arrived = stream.record_event()
            # On the other side: the GPU, which waits for no thread of ours.
            arrived.synchronize()
            return made

        return copy

    def send(self, metadata: TensorMetadata) -> Callable[[torch.Tensor], torch.Tensor]:
        """What copies a tensor of the CPU to the device."""
        user = torch.cuda.current_stream(metadata.device)

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            stream = self._stream(metadata.device)
            with torch.cuda.stream(stream):
                made = tensor.to(metadata.device, metadata.dtype, copy=True)
                arrived = stream.record_event()
            arrived.synchronize()  # as above
            made.record_stream(user)  # the copy's own stream may not use this memory again before that one is done
            return made

        return copy


TRANSPORTS: dict[str, Transport] = {"cuda": CudaTransport()}


def target_of(args: Any, kwargs: Any) -> tuple[torch.device, torch.dtype | None] | None:
    """Where, and as what, `tensor.to(*args, **kwargs)` copies; None if that says something else, or more."""
    rest = list(args[1:])
    given: dict[str, Any] = {"device": None, "dtype": None} | kwargs
    if rest and isinstance(rest[0], (str, torch.device)):
        given["device"] = rest.pop(0)
    elif rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
        given |= {"device": other.device, "dtype": other.dtype}
    if rest and isinstance(rest[0], torch.dtype):
        given["dtype"] = rest.pop(0)
    device, dtype = given.pop("device"), given.pop("dtype")
    # What is left says whether Python may wait, and whether to copy in any case.
    usual = set(given) <= {"non_blocking", "copy"} and all(type(item) is bool for item in (*rest, *given.values()))
    if device is None or not usual or len(rest) > 2:
        return None
    return torch.device(device), dtype


def _to(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    target = target_of(args, kwargs)
    moved = None if target is None else _moved(args[0], *target)
    return SESSION.queue(function, args, kwargs) if moved is None else moved


def _cpu(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if len(args) > 1 or kwargs:
        return SESSION.now(function, args, kwargs, changes=False)
    if tensor.__class__ is LazyTensor and tensor.value.metadata.device == CPU:
        return tensor
    moved = _moved(tensor, CPU, None)
    return SESSION.now(function, args, kwargs, changes=False) if moved is None else moved


def _cuda(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    moved = _moved(args[0], torch.device("cuda"), None) if len(args) == 1 and not kwargs else None
    return SESSION.now(function, args, kwargs, changes=False) if moved is None else moved


def _moved(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> LazyTensor | None:
    """The copy of a tensor on another device, still to come; None if this is no copy that can be queued."""
    transport = _transport(tensor.device, device)
    place = None if transport is None else CPU if device.type == "cpu" else transport.place(device)
    if transport is None or place is None or not _may_queue(tensor, transport):
        return None
    metadata = _copied_metadata(tensor, place, dtype)
    if metadata is None:
        return None
    value = LazyValue(metadata, LazyStorage(), None, -1)
    copied = lazy_tensor(value)
    task = _Copy(
        value, _fetching(transport, tensor, metadata) if place == CPU else _sending(transport, tensor, metadata)
    )
    push_copy(task, SESSION.variables(tensor), (value.storage.variable(),), metadata.bytes)
    return copied


def _copy_into(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    into, source = (*args, None)[:2]
    plain = len(args) <= 3 and set(kwargs) <= {"non_blocking"} and isinstance(source, torch.Tensor)
    transport = _transport(source.device, into.device) if plain else None
    if transport is None:
        return SESSION.queue(function, args, kwargs)
    simple = into.device == CPU and into.shape == source.shape and not into.requires_grad
    metadata = _copied_metadata(source, CPU, None) if simple and _may_queue(source, transport) else None
    if metadata is None or _exported(into):
        return SESSION.now(function, args, kwargs, changes=True)
    writes = SESSION.variables(into)
    reads = [*SESSION.variables(source), *writes]  # a copy that is skipped leaves there what there was
    push_copy(_CopyInto(into, _fetching(transport, source, metadata)), reads, writes, metadata.bytes)
    return into


def _may_queue(tensor: torch.Tensor, transport: Transport) -> bool:
    if is_inference_mode_enabled() or traced_elsewhere(()) or (tensor.requires_grad and is_grad_enabled()):
        return False
    if tensor.__class__ is LazyTensor:
        return not _exported(tensor)
    usual = not (tensor.is_neg() or tensor.is_conj() or tensor.is_inference() or tensor.is_quantized)
    if not usual or tensor.layout is not torch.strided or not transport.takes(tensor) or _exported(tensor):
        return False
    # Were a spawned function still to write it, what the device has queued so far would not be all of it.
    storage = SESSION.storages.find(tensor)
    return tensor.device == CPU or storage is None or engine().ready(storage.variable())


def _exported(tensor: torch.Tensor) -> bool:
    """Whether code that PyTorch knows nothing of may use the memory of a tensor of the CPU unseen."""
    real = tensor.value.real if tensor.__class__ is LazyTensor else tensor
    return real is not None and real.device == CPU and SESSION.storages.exported(real)


# The functions of PyTorch that are handled here.
HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.to: _to,
    torch.Tensor.cpu: _cpu,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.copy_: _copy_into,
}


def _transport(source: torch.device, target: torch.device) -> Transport | None:
    """What moves tensors between two devices one of which is the CPU."""
    if (source.type == "cpu") == (target.type == "cpu"):
        return None
    return TRANSPORTS.get(source.type if target.type == "cpu" else target.type)


def _copied_metadata(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> TensorMetadata | None:
    """The metadata of a copy; None where PyTorch would lay it out in another way."""
    shape, strides = tensor.shape, tensor.stride()
    placeholder = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
    dense = torch.empty_like(placeholder, dtype=dtype)
    return detached_metadata_on(dense, device) if dense.stride() == strides else None


def _fetching(transport: Transport, tensor: torch.Tensor, metadata: TensorMetadata) -> Callable[[], torch.Tensor]:
    """What copies a tensor of a device, as it is at this call, to the CPU."""
    if tensor.__class__ is not LazyTensor:
        return transport.fetch(tensor, metadata)
    value = tensor.value

    def fetch_what_arrived() -> torch.Tensor:
        return transport.fetch(_real(value), metadata)()

    return fetch_what_arrived


def _sending(transport: Transport, tensor: torch.Tensor, metadata: TensorMetadata) -> Callable[[], torch.Tensor]:
    """What copies a tensor of the CPU to a device."""
    send = transport.send(metadata)
    # The value that stands for a lazy source, not its tensor, as a task holds no more than it needs.
    source = tensor.value if tensor.__class__ is LazyTensor else tensor
    return lambda: send(_real(source))


class _Copy:
    """Copies a tensor, unless nobody holds what stands for the copy any more."""

    __name__ = "copy"

    def __init__(self, value: LazyValue, copy: Callable[[], torch.Tensor]) -> None:
        self._value = weakref.ref(value)
        self._copy = copy

    def __call__(self) -> None:
        value = self._value()
        if value is None:
            return
        metadata = value.metadata
        with torch.no_grad():
            made = self._copy()
        if made.shape != metadata.shape or made.stride() != metadata.strides or made.dtype != metadata.dtype:
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
    found: torch.Tensor | None = thing.real if thing.__class__ is LazyValue else thing
    if found is None:
        raise InternalError("a copy ran before what it takes was computed")
    return found
