"""Stand for tensors that are still being computed, and find them in nested arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import torch

from weft.codegen.torch_functions import dispatch_keys
from weft.engine import Var
from weft.lazy_tensors.native_calls import native_keys, native_strangers, placeholder_maker, usual_keys
from weft.lazy_tensors.operators import METADATA_QUERIES
from weft.trace.interception.capture import (
    has_gradient_hooks,
    make_placeholder,
    references_of_pytorch,
    swap_tensors,
    tree_map_only,
    without_functions,
)

if TYPE_CHECKING:
    from weft.lazy_tensors.recording import Recording

CPU = torch.device("cpu")
PLAIN = (torch.Tensor, torch.nn.Parameter)
EMPTY: frozenset[torch.Tensor] = frozenset()
keys_of: Callable[[torch.Tensor], int] = native_keys() or dispatch_keys
USUAL_KEYS = usual_keys()


class TensorMetadata:
    """All that operators can know of a plain tensor without its elements; equal metadata is one object."""

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
        # Both are made when first needed: what makes a lazy tensor with this metadata, and that of what `detach` gives.
        self.make: Callable[[LazyValue], Any] | None = None
        self.detached: TensorMetadata | None = None


_METADATA: dict[Any, TensorMetadata] = {}


def metadata_of(tensor: torch.Tensor) -> TensorMetadata | None:
    """The metadata of an ordinary tensor; None if it is of a kind that is not queued."""
    # Its keys tell that it lies on the CPU, strided, and is no negation, conjugate, quantized or inference tensor.
    if tensor.__class__ not in PLAIN or keys_of(tensor) != USUAL_KEYS:
        return None
    try:
        key = (tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf)
    except RuntimeError:
        return None  # a view made without gradients of what was then changed: PyTorch does not say where it comes from
    found = _METADATA.get(key)
    if found is None:
        found = _METADATA[key] = TensorMetadata(tensor)
    return found


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor, of which a subclass of the user's is not told that it was asked."""
    if tensor.__class__ in PLAIN:
        return tensor.device
    with without_functions():
        return tensor.device


def detached_metadata(tensor: torch.Tensor) -> TensorMetadata | None:
    """The metadata of what `detach` gives, which is not called: PyTorch lets go of the interpreter's lock in it."""
    metadata = metadata_of(tensor)
    if metadata is None or not metadata.requires_grad:
        return metadata
    if metadata.detached is None:
        metadata.detached = metadata_of(tensor.detach())
    return metadata.detached


def detached_metadata_on(tensor: torch.Tensor, device: torch.device) -> TensorMetadata:
    """The metadata of a tensor on some device that has sizes, strides and type of this one."""
    key = (tensor.shape, tensor.stride(), tensor.dtype, False, True)
    if device != CPU:
        return _METADATA.setdefault((*key, device), TensorMetadata(tensor, device))
    return _METADATA.setdefault(key, TensorMetadata(tensor))


class LazyStorage:
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


class LazyValue:
    """What stands behind one lazy tensor.

    `real` is the ordinary tensor once a worker has made it. A later write may still be queued then: who reads
    elements waits for the memory's variable, not for `real`.
    """

    __slots__ = ("__weakref__", "_storage", "epoch", "index", "leaves", "metadata", "producer", "real", "recording")

    def __init__(
        self, metadata: TensorMetadata, storage: LazyStorage | None, recording: Recording | None, index: int
    ) -> None:
        self.metadata = metadata
        self._storage = storage  # None: its own, of which nobody has asked yet
        self.recording = recording
        self.index = index
        self.real: torch.Tensor | None = None
        self.producer: LazyStorage | None = None  # of a view of other memory: written by the task that takes it
        self.epoch = 0  # of `leaves`: code that runs at once may change what an autograd graph reaches
        # What a backward from here gives gradients to; noted when the recording ends, see `TrieNode.reached`.
        self.leaves: frozenset[torch.Tensor] = EMPTY

    @property
    def storage(self) -> LazyStorage:
        """Its piece of memory."""
        found = self._storage
        if found is None:
            # On the other side: another thread that asks for the same memory, for these few lines.
            with _FIRST:
                found = self._storage
                if found is None:
                    found = LazyStorage()
                    found.recording = self.recording
                    self._storage = found
        return found

    def current_metadata(self) -> TensorMetadata | None:
        """Its metadata: that of the real tensor where there is one, as code outside the queue may have changed it."""
        real = self.real
        return self.metadata if real is None else metadata_of(real)


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


class StorageTable:
    """The memory of ordinary tensors that queued work names.

    An owner is known by its address only while it lives: memory that comes to lie there later is another one.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[Owner], LazyStorage]] = {}
        self._exported: dict[int, ref[Owner]] = {}

    def find(self, tensor: torch.Tensor) -> LazyStorage | None:
        """The memory of a tensor, if queued work may name it."""
        owner = _owner(tensor)
        found = self._entries.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def of(self, tensor: torch.Tensor) -> LazyStorage:
        """The memory of a tensor, from now on known."""
        return self.find(tensor) or self.bind(tensor, LazyStorage())

    def unless_exported(self, tensor: torch.Tensor) -> LazyStorage | None:
        """The memory of a tensor, from now on known; None if other code may read or write it unseen."""
        owner = _owner(tensor)
        if self._is_exported(owner):
            return None
        found = self._entries.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else self._bind(owner, LazyStorage())

    def bind(self, tensor: torch.Tensor, storage: LazyStorage) -> LazyStorage:
        """The memory of a tensor: this one, unless it is known by another already."""
        return self._bind(_owner(tensor), storage)

    def _bind(self, owner: Owner, storage: LazyStorage) -> LazyStorage:
        entry = ref(owner), storage
        found = self._entries.setdefault(id(owner), entry)
        if found[0]() is not owner:
            found = self._entries[id(owner)] = entry
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
        return bool(self._entries)

    def all(self) -> list[LazyStorage]:
        """Every memory that queued work may name."""
        return [storage for _, storage in list(self._entries.values())]

    def forget(self) -> None:
        """Forget what no queued work names any more: all of it is done. What a failure poisoned is kept as it lives."""
        self._entries = {
            key: (owner, storage)
            for key, (owner, storage) in self._entries.items()
            if storage.var and storage.var.failure and owner() is not None
        }
        self._exported = {key: owner for key, owner in self._exported.items() if owner() is not None}


class LazyTensor(torch.Tensor):
    """A tensor whose elements may not be there yet; reading them waits.

    It has no memory of its own. Python's calls arrive at `__torch_function__`; what reaches PyTorch in another way
    arrives at `__torch_dispatch__`, and gets the finished tensor in its place.
    """

    value: LazyValue  # no slot: a finished one becomes an ordinary tensor, whose objects have none
    on_function: ClassVar[Callable[[Any, Any, Any], Any]]
    on_operator: ClassVar[Callable[[Any, Any, Any], Any]]

    def __getattr__(self, name: str) -> Any:
        """Say what eager says of an attribute that no tensor has."""
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of PyTorch is called with a lazy tensor, outside a lazy block."""
        return LazyTensor.on_function(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch calls it so, and declares it otherwise
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """An operator reached a lazy tensor past Python's interface."""
        return LazyTensor.on_operator(func, args, kwargs or {})


def lazy_tensor(value: LazyValue) -> LazyTensor:
    """The tensor that stands for a value."""
    make = value.metadata.make
    if make is None:
        make = value.metadata.make = _maker(value.metadata)
    return make(value)  # type: ignore[no-any-return]


OWN_REFERENCES = 3  # to a tensor: of its value, of the function below, and of what counts them


def become_ordinary(tensor: LazyTensor) -> bool:
    """Let a lazy tensor be the ordinary one that it stands for, which only its value may hold; tell whether it is."""
    value = tensor.value
    real = value.real
    if real is None or real.__class__ is not torch.Tensor:
        return False
    with without_functions():
        if sys.getrefcount(real) > OWN_REFERENCES + references_of_pytorch(real):
            return False
        if vars(real) or has_gradient_hooks(real):
            return False  # what others have noted of the object would be lost
        swap_tensors(tensor, real)
        value.real = tensor
        tensor.__class__ = torch.Tensor  # type: ignore[assignment]
        del tensor.value
    return True


def _maker(metadata: TensorMetadata) -> Callable[[LazyValue], Any]:
    """What makes lazy tensors with this metadata."""

    def empty() -> LazyTensor:
        # By position: names take PyTorch a quarter longer.
        return make_placeholder(  # type: ignore[no-any-return]
            LazyTensor, metadata.shape, metadata.strides, None, None, metadata.dtype, torch.strided, metadata.device
        )

    def with_value(value: LazyValue) -> LazyTensor:
        made = empty()
        made.value = value
        return made

    with without_functions():
        return (placeholder_maker(empty(), "value") if metadata.device == CPU else None) or with_value


SEQUENCES = (tuple, list)


def flat(result: Any) -> list[Any]:
    """The results of a call in order."""
    return list(result) if isinstance(result, SEQUENCES) else [result]


strangers = native_strangers()


def as_given(result: Any, reals: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> Any:
    """A result in which arguments that are handed back are the very objects that were given."""
    if isinstance(result, torch.Tensor):
        return next((tensor for real, tensor in zip(reals, given, strict=True) if real is result), result)
    if type(result) in (tuple, list) and any(isinstance(item, torch.Tensor) for item in flat(result)):
        return type(result)(as_given(item, reals, given) for item in result)
    return result


def called(function: Callable[..., Any], args: Any, kwargs: Any, given: Any, reals: Any) -> Any:
    """Call a function with these tensors in the place of those given."""
    if any(tensor.__class__ is LazyTensor for tensor in given):
        by_id = {id(tensor): real for tensor, real in zip(given, reals, strict=True)}
        if not kwargs and len(given) == len(args):  # as most calls are: tensors, and nothing else
            args = reals
        else:
            args, kwargs = tree_map_only(LazyTensor, lambda tensor: by_id[id(tensor)], (args, kwargs))
    return as_given(function(*args, **kwargs), reals, given)


def tensors_in(item: Any, *, noted: bool = False) -> Iterator[torch.Tensor]:
    """The tensors of nested arguments; if `noted`, without those of lists and tuples whose memory nobody has noted."""
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, (tuple, list)):
        if not (noted and strangers(item)):
            for entry in item:
                yield from tensors_in(entry, noted=noted)
    elif isinstance(item, dict):
        for entry in item.values():
            yield from tensors_in(entry, noted=noted)


def answer_from_metadata(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Answer a question about a tensor that needs no elements."""
    tensor = args[0]
    if tensor.__class__ is not LazyTensor:
        return function(*args, **kwargs)
    value = tensor.value
    if value.real is not None:
        return function(value.real, *args[1:], **kwargs)
    name = METADATA_QUERIES[function]
    if name:
        return getattr(value.metadata, name)
    with without_functions():
        return function(*args, **kwargs)


def each_tensor(change: Callable[[torch.Tensor], torch.Tensor], thing: Any) -> Any:
    """Nested values with what a change makes of each tensor in its place; none of lists and tuples of strangers."""
    if isinstance(thing, torch.Tensor):
        return change(thing)
    if type(thing) in (list, tuple):
        return type(thing)(thing if strangers(thing) else [each_tensor(change, item) for item in thing])
    if type(thing) is dict:
        return {key: each_tensor(change, item) for key, item in thing.items()}
    if isinstance(thing, (list, tuple, dict)) and any(True for _ in tensors_in(thing)):
        # Named ones, such as torch.max gives.
        return tree_map_only(torch.Tensor, change, thing)
    return thing
