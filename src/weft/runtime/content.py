"""Tell by hashes whether the bytes of tensors are what they were, at the speed of memory and on all lanes.

Tensors made in inference mode have no version, and may be written there at any time. What was made of them is right as
long as their bytes are the same, which takes as long as reading them: so all lanes read.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import torch

from weft.codegen.calls.content import CONTENT_HASH, SAME_CONTENT, content_hash_module, same_content_module
from weft.codegen.threads.layout import MARK_OFFSET, PROGRAM_OFFSET, TABLE_OFFSET
from weft.codegen.threads.workers import BACKOFF_SLOT, FIRST_LANE_SLOT
from weft.runtime.lanes import dispatch_address
from weft.runtime.shared_code import shared_library
from weft.target import Target

WORTH_LANES = 128 * 1024  # bytes: fewer are read before another lane has begun
WORD = 8


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


class SameContent:
    """The bytes of some tensors as they are now.

    `run` is a function that marks a frame in which `description` stands as the program, where they have changed.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], lanes: int) -> None:
        held = [(*held_memory(tensor), byte_extent(tensor)) for tensor in tensors]
        lanes = lanes if sum(size for *_, size in held) >= WORTH_LANES else 1
        parts = list(_parts([(address, size) for address, _, size in held], lanes))
        # SAFETY: the storages are held as long as this object, which whoever runs the program holds.
        self._kept = [storage for _, storage, _ in held]
        starts = [sum(map(len, parts[:lane])) for lane in range(lanes + 1)]
        pieces = [(address, size, hash_of(address, size)) for part in parts for address, size in part]
        self._starts = (ctypes.c_uint64 * len(starts))(*starts)
        self._pieces = (ctypes.c_uint64 * (3 * len(pieces)))(*(word for piece in pieces for word in piece))
        library = shared_library(_text(lanes))
        serial = library.address(SAME_CONTENT)
        functions = [library.address(f"{SAME_CONTENT}_{lane}") for lane in range(lanes)]
        pace = [0] * (FIRST_LANE_SLOT - BACKOFF_SLOT)
        tables = ctypes.addressof(self._starts), ctypes.addressof(self._pieces)
        words = (serial, lanes, *pace, *functions, *tables)
        self._words = (ctypes.c_uint64 * len(words))(*words)
        self.description = ctypes.addressof(self._words)
        self.run = dispatch_address() if lanes > 1 else serial
        self._serial = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(serial)

    def holds(self) -> bool:
        """Tell whether the bytes are the same, on the calling thread alone."""
        frame = (ctypes.c_uint64 * (TABLE_OFFSET // WORD))()
        frame[PROGRAM_OFFSET // WORD] = self.description
        self._serial(ctypes.addressof(frame))
        return frame[MARK_OFFSET // WORD] == 0


def _parts(pieces: Sequence[tuple[int, int]], lanes: int) -> Iterator[list[tuple[int, int]]]:
    """Share out pieces of memory, given as address and bytes, evenly; some are cut."""
    left = list(reversed(pieces))
    rest = sum(size for _, size in pieces)
    for lane in range(lanes):
        share = -(-rest // (lanes - lane))
        share, part = min(rest, -(-share // WORD) * WORD), list[tuple[int, int]]()
        rest -= share
        while share:
            address, size = left.pop()
            taken = min(size, share)
            if taken < size:
                left.append((address + taken, size - taken))
            if taken:
                part.append((address, taken))
            share -= taken
        yield part


@cache
def _text(lanes: int) -> Callable[[Target], str]:
    return partial(same_content_module, lanes=lanes)
