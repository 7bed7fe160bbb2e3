"""A kind of device -> how a worker moves tensors between it and the CPU while both go on computing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.lazy_tensors.values import PLAIN, Look


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

    def fetch(self, tensor: torch.Tensor, look: Look) -> Callable[[], torch.Tensor]:
        """What copies a tensor of the device, as it is now, to the CPU."""
        return lambda: tensor.to(look.device, look.dtype, copy=True)

    def send(self, look: Look) -> Callable[[torch.Tensor], torch.Tensor]:
        """What copies a tensor of the CPU to the device."""
        return lambda tensor: tensor.to(look.device, look.dtype, copy=True)


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

    def fetch(self, tensor: torch.Tensor, look: Look) -> Callable[[], torch.Tensor]:
        """What copies a tensor of the device, as it is now, to the CPU."""
        # What is queued on the GPU later than this call must not hold the copy up.
        computed = torch.cuda.current_stream(tensor.device).record_event()

        def copy() -> torch.Tensor:
            made = torch.empty_strided(look.shape, look.strides, dtype=look.dtype, pin_memory=True)
            stream = self._stream(tensor.device)
            with torch.cuda.stream(stream):
                stream.wait_event(computed)
                made.copy_(tensor, non_blocking=True)
                arrived = stream.record_event()
            # On the other side: the GPU, which waits for no thread of ours.
            arrived.synchronize()
            return made

        return copy

    def send(self, look: Look) -> Callable[[torch.Tensor], torch.Tensor]:
        """What copies a tensor of the CPU to the device."""
        user = torch.cuda.current_stream(look.device)

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            stream = self._stream(look.device)
            with torch.cuda.stream(stream):
                made = tensor.to(look.device, look.dtype, copy=True)
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
