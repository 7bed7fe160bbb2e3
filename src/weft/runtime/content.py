"""A tensor's bytes -> 64 bits that differ where they do, at the speed of memory."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from weft.codegen.calls.content_hash import CONTENT_HASH, content_hash_module
from weft.runtime.shared_code import shared_library


def held_memory(tensor: torch.Tensor) -> tuple[int, torch.UntypedStorage]:
    """Give where a tensor's elements begin, and what keeps them there even if another thread gives it new memory."""
    while True:
        # Each of these calls keeps Python's lock, as does who replaces a tensor's memory. `detach` does not: it would
        # read the tensor while it changes.
        storage = tensor.untyped_storage()
        address = storage.data_ptr() + int(tensor.storage_offset()) * tensor.element_size()
        if tensor.data_ptr() in (address, 0):
            return address, storage


def content_hash(tensor: torch.Tensor) -> int:
    """Hash all bytes from a tensor's first element to its last, also those in between that are not its own."""
    # SAFETY: the storage has every element, so also what lies between the first and the last, and is held until the
    # end of this call.
    address, storage = held_memory(tensor)
    found = hash_of(address, byte_extent(tensor))
    del storage
    return found


def byte_extent(tensor: torch.Tensor) -> int:
    """Count the bytes from a tensor's first element to its last."""
    if not tensor.numel():
        return 0
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return extent * tensor.element_size()


def hash_of(address: int, size: int) -> int:
    """Hash some bytes of memory; whoever asks holds it."""
    found = ctypes.c_uint64()
    if size:
        _function()(address, size, ctypes.addressof(found))
    return found.value


@cache
def _function() -> Callable[[int, int, int], None]:
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    return kind(shared_library(content_hash_module).address(CONTENT_HASH))
