"""Know where PyTorch keeps what its tensors hold: words of memory that say that nothing has changed.

Comparing words takes a nanosecond each, asking Python or a tensor a hundred times as long. Which words these are is
found out at first use, with objects that differ in one thing each; where that does not come out as expected (of
another Python or PyTorch) there are none, and objects are asked. Whoever compares words holds the objects and Python's
lock, and compares in the order in which they are given: a word that leads to memory comes before those in it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, wraps
from typing import TypeVar

import torch

from weft.codegen.calls.native_call import ITEMS_OFFSET, SIZE_OFFSET, TYPE_OFFSET, ObjectLayout
from weft.worker_threads import in_a_thread

LONGEST_OBJECT = 64
MASKED_BYTES, MOST_TENSOR_BYTES = 176, 256  # compared, and those that a tensor's object may have
WORDS_OF_TENSOR = range(16, MASKED_BYTES, 8)
Row = tuple[int, int, int]  # an address, the bits that count, what they are
WORD = 8
TENSOR_BYTES, STORAGE_BYTES, COUNTER_BYTES = 176, 56, 24  # read for the search; the objects are at least as long
WHOLE_STORAGE_BYTES = 88
GRAD_BYTES, VIEW_BYTES = 160, 208  # of what autograd knows of a tensor, and of a view
PROBES = 16
FIRST_BYTE = 16  # behind the reference count
EVERY_BIT = (1 << 64) - 1
LEAST_POINTER, MOST_POINTER = 1 << 20, 1 << 48
LOW_BITS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class TensorLayout:
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


def place_rows(tensor: torch.Tensor, layout: TensorLayout) -> list[Row]:
    """Give the words that say where a tensor's elements lie."""
    # SAFETY: whoever compares the rows holds the tensor, and Python's lock, so that nobody replaces its storage
    # meanwhile; the rows that lead to an object come before those in it.
    base = tensor._cdata
    storage = word(base + layout.storage)
    places = (base + layout.storage, base + layout.offset, storage + layout.address)
    return [(place, EVERY_BIT, word(place)) for place in places]


def version_rows(tensor: torch.Tensor, layout: TensorLayout) -> list[Row]:
    """Give the words that say which version a tensor has."""
    # SAFETY: as above; a tensor holds its version counter.
    base = tensor._cdata
    place = word(base + layout.counter) + layout.version
    rows = [(base + layout.counter, EVERY_BIT), (place, LOW_BITS)]
    return [(at, bits, word(at) & bits) for at, bits in rows]


@probed
def tensor_layout() -> TensorLayout | None:
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
    return TensorLayout(start + WORD * storage, start + WORD * offset, start + WORD * counter, WORD * address, version)


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
    """Where autograd has what it knows of a tensor: byte offsets of that, and in it of a leaf's flag and a function.

    `kind` is its first word where the tensor is no view, `view_kind` where it is one, which then has the tensor that it
    is of at `base`. `rest` are offsets of words that are 0, unless there are hooks, or tangents.
    """

    known: int
    requires: int
    function: int
    kind: int
    rest: tuple[int, ...]
    view_kind: int
    base: int


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
    return None if requires is None else _grad_words(probes, known, requires)


def _grad_words(leaves: list[torch.Tensor], known: int, requires: int) -> GradLayout | None:
    """Find the words that tell leaves from tensors that were computed, and both from views."""
    computed, views = [leaf * 2 for leaf in leaves], [leaf[1:] for leaf in leaves]
    # SAFETY: as above; each tensor owns what autograd knows of it.
    of_leaves, of_computed, of_views = (
        [_words(_tensor_words(tensor)[known], GRAD_BYTES) for tensor in row] for row in (leaves, computed, views)
    )
    every = [*of_leaves, *of_computed]
    places = range(1, requires // WORD)
    functions = [
        at
        for at in places
        if not any(words[at] for words in of_leaves)
        and len({words[at] for words in of_computed if LEAST_POINTER < words[at] < MOST_POINTER}) == PROBES
    ]
    kinds, view_kinds = ({words[0] for words in found} for found in (every, of_views))
    of = [
        (_words(_tensor_words(view)[known], VIEW_BYTES), leaf._cdata) for view, leaf in zip(views, leaves, strict=True)
    ]
    base = _only(at for at in range(VIEW_BYTES // WORD) if all(words[at] == leaf for words, leaf in of))
    if len(functions) != 1 or len(kinds) != 1 or len(view_kinds) != 1 or kinds & view_kinds or base is None:
        return None
    rest = tuple(WORD * at for at in places if at > functions[0] and not any(words[at] for words in every))
    function = WORD * functions[0]
    return GradLayout(FIRST_BYTE + WORD * known, requires, function, kinds.pop(), rest, view_kinds.pop(), WORD * base)


def grad_code(tensor: torch.Tensor, layout: GradLayout) -> int | None:
    """Say whether a tensor requires no grad (0), or does as a leaf (1), or was computed (2); None if it may vary."""
    # SAFETY: the caller holds the tensor, and Python's lock.
    known = word(tensor._cdata + layout.known)
    if known == 0:
        return 0
    if word(known) == layout.kind:
        return _own_grad_code(known, layout)
    if word(known) != layout.view_kind or _own_grad_code(known, layout) != 0:
        return None
    # A view also requires grad where that does which it is of, and which it holds.
    base = word(word(known + layout.base) + layout.known)
    is_constant = base == 0 or (word(base) == layout.kind and _own_grad_code(base, layout) == 0)
    return 0 if is_constant else None


def _own_grad_code(known: int, layout: GradLayout) -> int | None:
    """Say the same of what autograd knows of a tensor by itself."""
    if any(word(known + at) for at in layout.rest):
        return None
    return 2 if word(known + layout.function) else ctypes.c_uint8.from_address(known + layout.requires).value


def requires_grad_rows(tensor: torch.Tensor, layout: GradLayout) -> list[Row]:
    """Give the words that say whether a tensor that is no view requires grad."""
    # SAFETY: whoever compares the rows holds the tensor, which keeps what autograd knows of it as long as it lives.
    place = tensor._cdata + layout.known
    known = word(place)
    if known == 0:
        return [(place, EVERY_BIT, 0)]
    at = known + layout.requires // WORD * WORD
    bits = 0xFF << 8 * (layout.requires % WORD)
    return [(place, EVERY_BIT, known), (at, bits, word(at) & bits), row_at(known + layout.function)]


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


def row_at(place: int) -> Row:
    """A word as it is now."""
    return place, EVERY_BIT, word(place)


@probed
def tensor_masks() -> tuple[tuple[int, int], ...]:
    """The places of a tensor's object that say what it looks like: (offset, bits that count); none if unknown."""
    alike: list[torch.Tensor] = []
    for byte in (0x00, 0xFF, 0xAA):
        # Bytes between fields keep what was in memory before: it must not be the same everywhere.
        _fill_idle_memory(byte)
        bases = [torch.zeros(64) for _ in range(PROBES)]
        alike += [torch.zeros(6) for _ in bases] + [base[place : place + 6] for place, base in enumerate(bases)]
    rows = [_bytes_of(tensor) for tensor in (*alike, torch.ones(3, 6)[1])]
    same = {at: _same_bits([int.from_bytes(row[at : at + 8], "little") for row in rows]) for at in WORDS_OF_TENSOR}
    unlike = (
        torch.zeros(6, dtype=torch.float64),
        torch.zeros(6, dtype=torch.int32),
        torch.zeros(7),
        torch.zeros(12)[::2],
        torch.zeros(2, 3),
        torch.zeros(()),
        torch.zeros(2, 3, 4, 5, 6),
        torch.zeros(6, 5, 4, 3, 2).permute(4, 3, 2, 1, 0),
        torch.zeros(6, device="meta"),  # shows the word of a tensor's kind: device, negated, made in inference mode
    )
    found: set[int] = set()
    for other in map(_bytes_of, unlike):
        telling = {
            at
            for at, bits in same.items()
            if bits & (int.from_bytes(other[at : at + 8], "little") ^ int.from_bytes(rows[0][at : at + 8], "little"))
        }
        if not telling:
            return ()
        found |= telling
    return tuple((at, same[at]) for at in sorted(found))


def _fill_idle_memory(byte: int) -> None:
    """Leave blocks of the sizes that tensors' objects may have with nothing but this byte."""
    for size in range(MASKED_BYTES, MOST_TENSOR_BYTES + 1, 16):
        blocks = [torch.full((size,), byte, dtype=torch.uint8) for _ in range(3 * PROBES)]  # as many as are made then
        del blocks


def _same_bits(words: list[int]) -> int:
    """The bits of whole bytes that agree in all words; none of what may be a pointer."""
    if all(word % 8 == 0 and LEAST_POINTER < word < MOST_POINTER for word in words):
        return 0
    differing = 0
    for one in words:
        differing |= one ^ words[0]
    return sum(0xFF << 8 * byte for byte in range(8) if not differing >> 8 * byte & 0xFF)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor._cdata, MASKED_BYTES)


@probed
def object_layout() -> ObjectLayout | None:
    """Find where Python's and PyTorch's objects have what a fast call reads; None where that is not certain."""
    layout = tensor_layout()
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.implementation.name != "cpython" or layout is None or not is_locked:
        return None
    content = b"weft's own bytes"
    items = [object(), object()]
    pair = tuple(items)
    # SAFETY: all these objects are held here, and are longer than what is read of them.
    starts = [place for place in range(16, 64) if ctypes.string_at(id(content) + place, 8) == content[:8]]
    as_expected = (
        word(id(items) + TYPE_OFFSET) == id(list)
        and word(id(pair) + TYPE_OFFSET) == id(tuple)
        and word(id(items) + SIZE_OFFSET) == word(id(pair) + SIZE_OFFSET) == len(items)
        and word(word(id(items) + ITEMS_OFFSET) + WORD) == word(id(pair) + ITEMS_OFFSET + WORD) == id(items[1])
    )
    tensors = [torch.zeros(2), torch.zeros(3)[1:], torch.nn.Parameter(torch.zeros(2))]
    size = min(torch.Tensor.__basicsize__, LONGEST_OBJECT)
    places = [at for at in range(16, size, WORD) if all(word(id(tensor) + at) == tensor._cdata for tensor in tensors)]
    if len(starts) != 1 or len(places) != 1 or not as_expected:
        return None
    return ObjectLayout(starts[0], places[0], layout.storage, layout.offset, layout.address)
