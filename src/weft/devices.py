"""Give names to the devices of this machine: `cpu:0`, `cpu:1`, ..., `cuda:0`, ...

A `cpu:i` is logical: a share of the cores that gets its own work. There are as many as there are cores to use, and more
may be named, as they only share the same cores more finely: so everything for many devices runs on one small machine.
A `cuda:i` is a real device, so its number must exist.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from weft.config import config
from weft.errors import UsageError, counted
from weft.target import host_target

KINDS = ("cpu", "cuda")
NAME = re.compile(r"([a-z]+)(?::([0-9]+))?")


@dataclass(frozen=True, order=True)
class Device:
    """One place where work runs, in its own order."""

    kind: str
    index: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    @property
    def torch_device(self) -> torch.device:
        """Give PyTorch's name for the memory of this device: all `cpu:i` share one memory."""
        return torch.device("cpu") if self.kind == "cpu" else torch.device(self.kind, self.index)


_cores: ContextVar[int | None] = ContextVar("weft_cores", default=None)


def cpu_count() -> int:
    """Count the cores Weft may use here: those of a `cores` block, WEFT_THREADS, or all this process may run on."""
    return _cores.get() or config().threads or host_target().cores


class cores:  # noqa: N801  # called like a function, as `contextlib.suppress` is
    """A block in which what this thread compiles uses so many cores: work that shares the machine with other work."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self._token = _cores.set(self.count)

    def __exit__(self, *error: object) -> None:
        _cores.reset(self._token)


def all_devices() -> tuple[Device, ...]:
    """List every device of this machine: one `cpu:i` a core, then one `cuda:i` a GPU."""
    cpus = (Device("cpu", index) for index in range(cpu_count()))
    gpus = (Device("cuda", index) for index in range(torch.cuda.device_count()))
    return (*cpus, *gpus)


def parse(device: "str | torch.device | Device") -> Device:
    """Find the device of a name: `parse("cpu:1")`; a name without a number means the first, or torch's current GPU."""
    match = NAME.fullmatch(str(device))
    if match is None or match[1] not in KINDS:
        raise UsageError(
            f"there is no device called {str(device)!r}",
            why="a device is cpu:0, cpu:1, ... or cuda:0, cuda:1, ...",
            fix='for a GPU write "cuda:0"' if str(device).startswith("gpu") else None,
        )
    kind = match[1]
    if kind == "cpu":
        return Device(kind, int(match[2] or 0))
    gpus = torch.cuda.device_count()
    index = int(match[2]) if match[2] else torch.cuda.current_device() if gpus else 0
    if index >= gpus:
        raise UsageError(
            f"there is no device {kind}:{index} on this machine",
            why=f"PyTorch sees {counted(gpus, 'CUDA device')}",
            fix="use cpu:0, or check the driver, CUDA_VISIBLE_DEVICES and that this PyTorch is built for CUDA",
        )
    return Device(kind, index)


_placed: ContextVar[Device | None] = ContextVar("weft_device", default=None)


def placed() -> Device | None:
    """Give the device of the innermost `on` block, if this is in one."""
    return _placed.get()


def current() -> Device:
    """Give the device where new work goes: that of the innermost `on` block, else torch's default device."""
    return _placed.get() or parse(torch.get_default_device())


@contextmanager
def on(device: "str | torch.device | Device") -> Iterator[Device]:
    """Place the work of a block on a device by hand; the choice belongs to this thread or task only."""
    place = parse(device)
    token = _placed.set(place)
    try:
        yield place
    finally:
        _placed.reset(token)
