"""A tensor that is still being computed -> what is known of it: its look, its memory, and who makes it."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from weft.codegen.torch_functions import dispatch_keys
from weft.engine import Var
from weft.runtime.lazy_calls import native_keys, usual_keys
from weft.trace.interception.capture import without_functions

if TYPE_CHECKING:
    from weft.lazy_tensors.recording import Recording

CPU = torch.device("cpu")
PLAIN = (torch.Tensor, torch.nn.Parameter)
EMPTY: frozenset[torch.Tensor] = frozenset()
keys_of: Callable[[torch.Tensor], int] = native_keys() or dispatch_keys
USUAL_KEYS = usual_keys()


class Look:
    """All that operators can know of a plain tensor without its elements; equal looks are one object."""

    __slots__ = ("bytes", "detached", "device", "dtype", "leaf", "make", "numel", "requires_grad", "shape", "strides")

    def __init__(self, tensor: torch.Tensor, device: torch.device = CPU) -> None:
        self.device = device
        self.shape = tensor.shape
        self.strides = tensor.stride()
        self.dtype = tensor.dtype
        self.requires_grad = tensor.requires_grad
        self.leaf = tensor.is_leaf
        self.numel = tensor.numel()
        self.bytes = self.numel * tensor.element_size()
        self.make: Callable[[Value], Any] | None = None  # makes a lazy tensor of this look; learned when first needed
        self.detached: Look | None = None  # that of what `detach` gives; learned as well


_LOOKS: dict[Any, Look] = {}


def look_of(tensor: torch.Tensor) -> Look | None:
    """The look of an ordinary tensor; None if it is of a kind that is not queued."""
    # Its keys tell that it lies on the CPU, strided, and is no negation, conjugate, quantized or inference tensor.
    if tensor.__class__ not in PLAIN or keys_of(tensor) != USUAL_KEYS:
        return None
    try:
        key = (tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf)
    except RuntimeError:
        return None  # a view made without gradients of what was then changed: PyTorch does not say where it comes from
    found = _LOOKS.get(key)
    if found is None:
        found = _LOOKS[key] = Look(tensor)
    return found


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor, of which a subclass of the user's is not told that it was asked."""
    if tensor.__class__ in PLAIN:
        return tensor.device
    with without_functions():
        return tensor.device


def detached_look(tensor: torch.Tensor) -> Look | None:
    """The look of what `detach` gives, which is not called: PyTorch lets go of the interpreter's lock in it."""
    look = look_of(tensor)
    if look is None or not look.requires_grad:
        return look
    if look.detached is None:
        look.detached = look_of(tensor.detach())
    return look.detached


def look_without_gradient(tensor: torch.Tensor, device: torch.device) -> Look:
    """The look of a tensor on some device that has sizes, strides and type of this one."""
    key = (tensor.shape, tensor.stride(), tensor.dtype, False, True)
    if device != CPU:
        return _LOOKS.setdefault((*key, device), Look(tensor, device))
    return _LOOKS.setdefault(key, Look(tensor))


class Memory:
    """One piece of memory, which views share: its tasks are ordered by `var`."""

    __slots__ = ("recording", "var")

    def __init__(self) -> None:
        self.var: Var | None = None
        self.recording: Recording | None = None  # the last one that reads or writes it

    def variable(self) -> Var:
        """The engine's variable, made when a first task names it."""
        found = self.var
        if found is None:
            found = self.var = Var("a lazy tensor")
        return found


_FIRST = RLock()  # reentrant: the collector may run a finalizer in the middle


class Value:
    """What stands behind one lazy tensor.

    `real` is the ordinary tensor once a worker has made it. A later write may still be queued then: who looks at
    elements waits for the memory's variable, not for `real`.
    """

    __slots__ = ("__weakref__", "_memory", "epoch", "index", "leaves", "look", "maker", "real", "recording")

    def __init__(self, look: Look, memory: Memory | None, recording: Recording | None, index: int) -> None:
        self.look = look
        self._memory = memory  # None: its own, of which nobody has asked yet
        self.recording = recording
        self.index = index
        self.real: torch.Tensor | None = None
        self.maker: Memory | None = None  # of a view of memory from elsewhere: what the task that takes the view writes
        self.epoch = 0  # of `leaves`: code that runs at once may change what an autograd graph reaches
        # What a backward from here gives gradients to; noted when the recording ends, see `Point.reached`.
        self.leaves: frozenset[torch.Tensor] = EMPTY

    @property
    def memory(self) -> Memory:
        """Its piece of memory."""
        found = self._memory
        if found is None:
            # On the other side: another thread that asks for the same memory, for these few lines.
            with _FIRST:
                found = self._memory
                if found is None:
                    found = Memory()
                    found.recording = self.recording
                    self._memory = found
        return found

    def look_now(self) -> Look | None:
        """Its look: that of the real tensor where there is one, as code outside the queue may have changed it."""
        real = self.real
        return self.look if real is None else look_of(real)


Owner = torch.UntypedStorage | torch.Tensor


def _owner(tensor: torch.Tensor) -> Owner:
    """What lives exactly as long as the memory of a tensor; one of another layout (sparse, say) is alone in its own."""
    try:
        if tensor.__class__ in PLAIN:
            return tensor.untyped_storage()
        with without_functions():  # a subclass of the user's is shown what the user calls, and nothing else
            return tensor.untyped_storage()
    except NotImplementedError:
        return tensor


class Memories:
    """The memory of ordinary tensors that queued work names.

    An owner is known by its address only while it lives: memory that comes to lie there later is another one.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Owner], Memory]] = {}
        self._exported: dict[int, ref[Owner]] = {}

    def find(self, tensor: torch.Tensor) -> Memory | None:
        """The memory of a tensor, if queued work may name it."""
        owner = _owner(tensor)
        found = self._known.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def of(self, tensor: torch.Tensor) -> Memory:
        """The memory of a tensor, from now on known."""
        return self.find(tensor) or self.bind(tensor, Memory())

    def unless_exported(self, tensor: torch.Tensor) -> Memory | None:
        """The memory of a tensor, from now on known; None if other code may read or write it unseen."""
        owner = _owner(tensor)
        if self._is_exported(owner):
            return None
        found = self._known.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else self._bind(owner, Memory())

    def bind(self, tensor: torch.Tensor, memory: Memory) -> Memory:
        """The memory of a tensor: this one, unless it is known by another already."""
        return self._bind(_owner(tensor), memory)

    def _bind(self, owner: Owner, memory: Memory) -> Memory:
        fresh = ref(owner), memory
        found = self._known.setdefault(id(owner), fresh)
        if found[0]() is not owner:
            found = self._known[id(owner)] = fresh
        return found[1]

    def export(self, tensor: torch.Tensor) -> None:
        """Note that other code may hold the address of a tensor's memory."""
        owner = _owner(tensor)
        self._exported[id(owner)] = ref(owner)

    def exported(self, tensor: torch.Tensor) -> bool:
        """Whether other code (numpy, for one) may read or write this memory unseen."""
        return self._is_exported(_owner(tensor))

    def _is_exported(self, owner: Owner) -> bool:
        found = self._exported.get(id(owner))
        known = found is not None and found() is owner
        return known or not isinstance(owner, torch.UntypedStorage) or not owner.resizable()

    def any(self) -> bool:
        """Whether queued work may name any."""
        return bool(self._known)

    def all(self) -> list[Memory]:
        """Every memory that queued work may name."""
        return [memory for _, memory in list(self._known.values())]

    def forget(self) -> None:
        """Forget what no queued work names any more: all of it is done. What a failure poisoned is kept as it lives."""
        self._known = {
            key: (owner, memory)
            for key, (owner, memory) in self._known.items()
            if memory.var and memory.var.failure and owner() is not None
        }
        self._exported = {key: owner for key, owner in self._exported.items() if owner() is not None}
