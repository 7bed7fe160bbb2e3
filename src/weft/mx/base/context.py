"""Name devices as MXNet does: `cpu(i)` are distinct places in one memory, `gpu(i)` is `cuda:i`."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, ClassVar

import torch
from typing_extensions import Self

from weft.mx.base.errors import MXNetError

KINDS = ("cpu", "gpu", "cpu_pinned", "cpu_shared")
NUMBERS = {"cpu": 1, "gpu": 2, "cpu_pinned": 3, "cpu_shared": 5}


class _Stack(threading.local):
    """The contexts that this thread has entered."""

    def __init__(self) -> None:
        self.entered: list[Context] = []


class Context:
    """A device; as a `with` block it is where arrays are made that name none."""

    default_ctx: ClassVar[Context]
    _stack: ClassVar[_Stack] = _Stack()

    _made: ClassVar[dict[tuple[str, int], Context]] = {}
    device_type: str
    device_id: int
    name: str

    def __new__(cls, device_type: str | Context, device_id: int = 0) -> Self:
        """The one object of a device, so that equal ones are the same."""
        kind, number = (
            (device_type.device_type, device_type.device_id)
            if isinstance(device_type, Context)
            else (device_type, device_id)
        )
        if kind not in KINDS:
            raise KeyError(kind)
        found = cls._made.get((kind, number))
        if found is None:
            found = super().__new__(cls)
            found.device_type, found.device_id, found.name = kind, number, f"{kind}({number})"
            found = cls._made.setdefault((kind, number), found)
        assert isinstance(found, cls)
        return found

    def __reduce__(self) -> Any:
        return Context, (self.device_type, self.device_id)

    @property
    def device_typeid(self) -> int:
        """The number by which files name the kind of device."""
        return NUMBERS[self.device_type]

    @property
    def torch_device(self) -> torch.device:
        """Where torch keeps the elements; an MXNetError if this machine has no such device."""
        if self.device_type != "gpu":
            return torch.device("cpu")
        if self.device_id >= torch.cuda.device_count():
            raise MXNetError(
                f"{self} is not there: this machine has {torch.cuda.device_count()} GPUs. "
                "GPU support is disabled or the device id is invalid; use mx.cpu(i)."
            )
        return torch.device("cuda", self.device_id)

    def empty_cache(self) -> None:
        """Give back GPU memory that is kept for later."""
        if self.device_type == "gpu":
            torch.cuda.empty_cache()

    def __repr__(self) -> str:
        return self.name

    def __enter__(self) -> Self:
        self._stack.entered.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.entered.pop()


Context.default_ctx = Context("cpu", 0)


def cpu(device_id: int = 0) -> Context:
    """A share of the processor."""
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """Memory that a GPU can copy from at once; here the same as `cpu`."""
    return Context("cpu_pinned", device_id)


def gpu(device_id: int = 0) -> Context:
    """A GPU; that it exists is asked when an array is made there."""
    return Context("gpu", device_id)


def num_gpus() -> int:
    """Count the GPUs of this machine."""
    return torch.cuda.device_count()


def current_context() -> Context:
    """The context of the innermost `with` block, else `cpu(0)`."""
    entered = Context._stack.entered
    return entered[-1] if entered else Context.default_ctx


def from_text(text: str) -> Context:
    """Read `cpu(1)` as the JSON of a symbol has it."""
    kind, _, rest = text.partition("(")
    return Context(kind, int(rest.rstrip(")") or 0))
