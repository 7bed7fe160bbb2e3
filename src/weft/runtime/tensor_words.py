"""A tensor -> the words of memory that say where its elements lie and which version they have.

Comparing words takes a nanosecond each, asking a tensor a tenth of a microsecond. Which words of PyTorch's objects
these are is found out at first use, with tensors that differ in one thing each; where that does not come out as
expected (another PyTorch) there are none, and tensors are asked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, wraps
from typing import TypeVar

import torch

from weft.worker_threads import in_a_thread

Row = tuple[int, int, int]  # an address, the bits that count, what they are
WORD = 8
TENSOR_BYTES, STORAGE_BYTES, COUNTER_BYTES = 176, 56, 24  # read for the search; the objects are at least as long
WHOLE_STORAGE_BYTES = 88
GRAD_BYTES = 160  # of what autograd knows of a tensor
PROBES = 16
FIRST_BYTE = 16  # behind the reference count
EVERY_BIT = (1 << 64) - 1
LOW_BITS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets: of the storage, the offset in it and the version counter in a tensor; of what these two hold."""

    storage: int
    offset: int
    counter: int
    address: int
    version: int


Found = TypeVar("Found")


def probed(find: Callable[[], Found]) -> Callable[[], Found]:
    """Let a search with tensors run once, in a thread of its own.

    A thread begins without modes. Those of the caller (inference mode, a default device, a tracer) would make other
    tensors than the search is about.
    """

    @cache
    @wraps(find)
    def once() -> Found:
        # Whoever waits here holds no lock that the search, which takes none but PyTorch's own, could wait for.
        return in_a_thread(find)

    return once


def place_rows(tensor: torch.Tensor, layout: Layout) -> list[Row]:
    """Give the words that say where a tensor's elements lie."""
    # SAFETY: whoever compares the rows holds the tensor, and Python's lock, so that nobody replaces its storage
    # meanwhile; the rows that lead to an object come before those in it.
    base = tensor._cdata
    storage = word(base + layout.storage)
    places = (base + layout.storage, base + layout.offset, storage + layout.address)
    return [(place, EVERY_BIT, word(place)) for place in places]


def version_rows(tensor: torch.Tensor, layout: Layout) -> list[Row]:
    """Give the words that say which version a tensor has."""
    # SAFETY: as above; a tensor holds its version counter.
    base = tensor._cdata
    place = word(base + layout.counter) + layout.version
    rows = [(base + layout.counter, EVERY_BIT), (place, LOW_BITS)]
    return [(at, bits, word(at) & bits) for at, bits in rows]


@probed
def tensor_layout() -> Layout | None:
    """Find the words; None where they are not found beyond doubt."""
    # What lies behind a tensor's object is anything, also what is looked for: only what all probes show counts.
    probes = [torch.zeros(64 + number) for number in range(PROBES)]
    found = [_places(probe) for probe in probes]
    storage, counter, offset = (_only(set.intersection(*sets)) for sets in zip(*found, strict=True))
    if storage is None or counter is None or offset is None:
        return None
    whole = probes[0]
    # Memory of torch's own is its own context; that of others shows which of the two words is the address.
    foreign = torch.frombuffer(bytearray(8), dtype=torch.uint8)
    held = [(tensor, _words(_tensor_words(tensor)[storage], STORAGE_BYTES)) for tensor in (whole, foreign)]
    address = _only(i for i in range(STORAGE_BYTES // WORD) if all(t.data_ptr() == words[i] for t, words in held))
    version = _version_place(whole, _tensor_words(whole)[counter])
    if address is None or version is None:
        return None
    start = FIRST_BYTE
    return Layout(start + WORD * storage, start + WORD * offset, start + WORD * counter, WORD * address, version)


@probed
def storage_object_place() -> int | None:
    """Find where a storage has Python's object of it, which is made when somebody asks for it; None if not for sure."""
    layout = tensor_layout()
    if layout is None:
        return None
    tensors = [torch.zeros(64 + number) for number in range(PROBES)]
    # SAFETY: each tensor holds its storage, an object of at least so many bytes.
    storages = [word(tensor._cdata + layout.storage) for tensor in tensors]
    before = [_words(storage, WHOLE_STORAGE_BYTES) for storage in storages]
    objects = [tensor.untyped_storage() for tensor in tensors]
    after = [_words(storage, WHOLE_STORAGE_BYTES) for storage in storages]
    place = _only(
        at
        for at in range(WHOLE_STORAGE_BYTES // WORD)
        if all(words[at] == 0 for words in before)
        and all(words[at] == id(thing) for words, thing in zip(after, objects, strict=True))
    )
    return None if place is None else WORD * place


@dataclass(frozen=True, slots=True)
class GradLayout:
    """Byte offsets: of what autograd knows of a tensor, and in it of the byte that says whether it requires grad."""

    known: int
    requires: int


@probed
def grad_layout() -> GradLayout | None:
    """Find the words; None where they are not found beyond doubt."""
    probes = [torch.zeros(64 + number) for number in range(PROBES)]
    plain = [_tensor_words(probe) for probe in probes]
    for probe in probes:
        probe.requires_grad_(True)
    known = _only(
        at
        for at in range(len(plain[0]))
        if all(words[at] == 0 for words in plain) and len({_tensor_words(probe)[at] for probe in probes}) == PROBES
    )
    if known is None:
        return None
    found = set(range(GRAD_BYTES))
    for probe in probes:
        # SAFETY: what autograd knows of a tensor is an object of at least so many bytes, which the tensor owns.
        base = _tensor_words(probe)[known]
        for flag in (True, False, True):
            probe.requires_grad_(flag)
            found &= {at for at in found if ctypes.c_uint8.from_address(base + at).value == int(flag)}
    requires = _only(found)
    return None if requires is None else GradLayout(FIRST_BYTE + WORD * known, requires)


def requires_grad_rows(tensor: torch.Tensor, layout: GradLayout) -> list[Row]:
    """Give the words that say whether a leaf requires grad."""
    # SAFETY: whoever compares the rows holds the tensor, which keeps what autograd knows of it as long as it lives.
    place = tensor._cdata + layout.known
    known = word(place)
    if known == 0:
        return [(place, EVERY_BIT, 0)]
    at = known + layout.requires // WORD * WORD
    bits = 0xFF << 8 * (layout.requires % WORD)
    return [(place, EVERY_BIT, known), (at, bits, word(at) & bits)]


def _places(whole: torch.Tensor) -> tuple[set[int], set[int], set[int]]:
    """Give the words of a tensor that may be its storage, its version counter, its offset."""
    others = whole.detach(), whole.data, whole.clone()
    slices = whole[7:], whole[11:]
    # SAFETY: the tensors live while their objects are read, and what is read behind them is their allocator's memory.
    plain, detached, other_version, copy = map(_tensor_words, (whole, *others))
    offsets = list(zip(plain, *map(_tensor_words, slices), strict=True))
    storage = {i for i, w in enumerate(plain) if w == detached[i] == other_version[i] != copy[i]}
    counter = {i for i, w in enumerate(plain) if w == detached[i] and w not in (other_version[i], copy[i])}
    return storage, counter, {i for i, words in enumerate(offsets) if words == (0, 7, 11)}


def _version_place(tensor: torch.Tensor, counter: int) -> int | None:
    """Find the 32 bits of a counter that are a tensor's version, through several versions."""
    found = set(range(0, COUNTER_BYTES, 4))
    for _ in range(5):
        tensor.add_(1)
        found &= {at for at in found if ctypes.c_uint32.from_address(counter + at).value == tensor._version}
    return _only(found)


def _only(found: Iterable[int]) -> int | None:
    """Give the one number there is."""
    numbers = list(found)
    return numbers[0] if len(numbers) == 1 else None


def _tensor_words(tensor: torch.Tensor) -> list[int]:
    return _words(tensor._cdata + FIRST_BYTE, TENSOR_BYTES - FIRST_BYTE)


def _words(address: int, size: int) -> list[int]:
    return list((ctypes.c_uint64 * (size // WORD)).from_address(address))


def word(address: int) -> int:
    """Read 64 bits; whoever asks guarantees that they may be read."""
    return ctypes.c_uint64.from_address(address).value
