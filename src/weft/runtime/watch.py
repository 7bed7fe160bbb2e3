"""Detect writes that bypass the version counter: other owners of a tensor's memory, and what is taken of it later.

Tensors have a version that in-place operators count up. Aliases that `.data`, `numpy()`, DLPack, `set_` and unsafe
splits give write to the same memory and count nothing, or something else; fused optimizers count nothing either. From
the first packing on, asking any tensor for one of these, and a fused update of it, tells those who watch its memory.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.utils.dlpack

from weft.codegen.torch_functions import storage_owners, wrap_fused_updates
from weft.runtime.memory_layout import EVERY_BIT, Row
from weft.trace.interception.refusals import forgive

# Ways to an alias whose writes the tensor's version does not show. `__array__` goes through numpy().
METHODS = ("numpy", "__dlpack__")
UNSAFE = ("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")
FUNCTIONS = (
    (torch.Tensor, "set_"),
    (torch, "to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
    *((owner, name) for owner in (torch, torch.Tensor) for name in UNSAFE),
)
MAPPINGS = Path("/proc/self/maps")


class Watcher(Protocol):
    """Somebody who must know of aliases."""

    def alias_taken(self) -> None:
        """An alias of the memory was taken just now, or the memory was replaced."""


class Changes:
    """Counts events that may have changed any weight; whoever has seen the same count need not look again."""

    # In native memory, where native code compares it.
    _cell = ctypes.c_uint64(0)
    _numbers = itertools.count(1)

    @classmethod
    def happened(cls) -> None:
        """Note an event. No number comes twice, so of two threads here at once both are noticed."""
        cls._cell.value = next(cls._numbers)

    @classmethod
    def count(cls) -> int:
        """Give the count."""
        return cls._cell.value

    @classmethod
    def row(cls) -> Row:
        """Give the word of memory that holds the count, as it is."""
        return ctypes.addressof(cls._cell), EVERY_BIT, cls.count()


def has_other_writers(tensor: torch.Tensor) -> bool:
    """Tell whether somebody else can now write to the tensor's memory without its version."""
    if tensor.is_inference():
        return True  # it has no version
    return storage_owners(tensor) > 1 or is_foreign(tensor) or tensor.untyped_storage().is_shared()


def is_foreign(tensor: torch.Tensor) -> bool:
    """Tell whether the memory came from numpy or a file: it cannot be resized, and has owners torch cannot count."""
    storage = tensor.untyped_storage()
    return not storage.resizable() and not storage.is_shared() and not tensor.is_inference()


def is_of_file_alone(tensor: torch.Tensor) -> bool:
    """Tell whether the memory is this process's own mapping of a file, and no other tensor or array has it.

    Who maps a file to read weights of it writes nothing there; what lies in an array may be written at any time.
    """
    if not is_foreign(tensor) or storage_owners(tensor) > 1:
        return False
    try:
        mappings = MAPPINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False  # not a Linux: nobody says what memory is
    address = tensor.data_ptr()
    return any(_is_private_file(mapping.split(maxsplit=5), address) for mapping in mappings)


def _is_private_file(mapping: Sequence[str], address: int) -> bool:
    """Tell whether a mapping (its addresses, rights, offset, device, inode, path) is of a file, private, and there."""
    first, _, end = mapping[0].partition("-")
    return int(first, 16) <= address < int(end, 16) and mapping[1].endswith("p") and mapping[4] != "0"


_watchers: dict[int, tuple[Watcher, ...]] = {}
_retired: deque[tuple[int, Watcher]] = deque()


def watch(memory: int, watcher: Watcher) -> None:
    """Tell a watcher from now on about aliases of the memory at an address; for one thread at a time."""
    notice_aliases()
    while _retired:
        retired, former = _retired.popleft()
        left = tuple(other for other in _watchers.get(retired, ()) if other is not former)
        if left:
            _watchers[retired] = left
        else:
            _watchers.pop(retired, None)
    _watchers[memory] = (*_watchers.get(memory, ()), watcher)


def retire(memory: int, watcher: Watcher) -> None:
    """Stop telling a watcher about the memory at an address, soon; at any time, also as an object ends."""
    # Only queued: an object may end in the middle of `watch`.
    _retired.append((memory, watcher))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def _notice(tensor: torch.Tensor) -> None:
    """Tell the watchers of a tensor's memory, after what may let others write to it and before anybody has that.

    Whoever looked in between has seen the memory as it was; told before, he would take it for all there is to see.
    """
    # Subclasses stand for something else: fake tensors, traced ones, those of another library.
    if not _watchers or type(tensor) not in PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided:
        return
    try:
        memory = _memory(tensor)
    except RuntimeError as error:
        forgive(error)
        return  # a tensor without memory of its own, such as those inside torch.func
    for watcher in _watchers.get(memory, ()):
        watcher.alias_taken()


PLAIN = (torch.Tensor, torch.nn.Parameter)
_is_installed = False


def notice_aliases() -> None:
    """Wrap the ways to aliases, once: before code is traced that may ask which names PyTorch's classes have."""
    global _is_installed  # noqa: PLW0603  # torch's classes are changed once in a process
    if _is_installed:
        return
    _is_installed = True
    for name in METHODS:
        setattr(torch.Tensor, name, _noticing(getattr(torch.Tensor, name)))
    for module, name in FUNCTIONS:
        setattr(module, name, _noticing_given(getattr(module, name)))
    # Shadows the attribute of torch's base class, which stays as it is.
    torch.Tensor.data = _noticing_property(torch.Tensor.data)  # type: ignore[assignment]
    wrap_fused_updates(_noticing_update)


def _noticing(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        result = method(self, *arguments, **keywords)
        _notice(self)
        return result

    return call


def _noticing_given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that makes an alias of any tensor it is given."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = function(*arguments, **keywords)
        if not torch.compiler.is_compiling():  # such code is not run, but read
            for given in (*arguments, *keywords.values()):
                if isinstance(given, torch.Tensor):
                    _notice(given)
        return result

    return call


def _noticing_update(update: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(update)
    def call(parameters: Sequence[torch.Tensor], *arguments: Any, **keywords: Any) -> Any:
        result = update(parameters, *arguments, **keywords)
        if not torch.compiler.is_compiling():  # what is compiled counts the versions up
            for parameter in parameters:
                _notice(parameter)
        return result

    return call


def _noticing_property(attribute: Any) -> property:
    read, write = attribute.__get__, attribute.__set__

    def get(self: torch.Tensor) -> Any:
        alias = read(self)
        _notice(self)
        return alias

    def put(self: torch.Tensor, value: torch.Tensor) -> None:
        write(self, value)
        _notice(value)  # whose memory has another owner; that this tensor's is another, its address says

    return property(get, put, doc=attribute.__doc__)
