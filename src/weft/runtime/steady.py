"""What must not have changed -> one native comparison of memory, instead of a Python one for each fact.

A watch looks at the version that CPython keeps of every dictionary (a module's attributes, parameters, submodules,
hooks) and at the bytes in which PyTorch keeps a tensor's sizes, strides and element type. Which bytes these are is
found out at first use, by comparing tensors that differ in nothing but their memory; where that does not come out as
expected (another Python, another PyTorch) there is no watch, and the facts are compared one by one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import CellType
from typing import Any

import torch

from weft.codegen.watching import ROW_WORDS, WATCH, emit_watch
from weft.runtime.shared_code import shared_library
from weft.runtime.tensor_words import grad_layout, probed, requires_grad_rows

# A dictionary's version counts every change of it; it is a field of the object up to Python 3.13.
VERSION_OFFSET = 24
CELL_OFFSET = 16
LIST_SIZE_OFFSET, LIST_ITEMS_OFFSET = 16, 24
LAST_WITH_VERSIONS = (3, 13)
TENSOR_BYTES = 176
FIRST_BYTE = 16  # behind the reference count
PROBES = 16
WORDS_OF_TENSOR = range(FIRST_BYTE, TENSOR_BYTES, 8)
LEAST_POINTER = 1 << 20
MOST_DIMENSIONS = 5  # sizes of more dimensions lie in memory of their own
Row = tuple[int, int, int]
EVERY_BIT = (1 << 64) - 1


class Steady:
    """Watches dictionaries, tensors and other words of memory as they are when it is made.

    Dictionaries and tensors are kept alive as long as it is; whoever gives other words keeps what they are words of.
    """

    def __init__(
        self, dictionaries: Sequence[dict[Any, Any]], tensors: Sequence[torch.Tensor], others: Sequence[Row] = ()
    ) -> None:
        self._kept = (tuple(dictionaries), tuple(tensors))
        places = [id(entry) + VERSION_OFFSET for entry in dictionaries]
        rows: list[Row] = [(place, EVERY_BIT, _word(place)) for place in places]
        rows += others
        masks = tensor_masks()
        for tensor in tensors:
            address = tensor._cdata
            rows += [(address + at, mask, _word(address + at) & mask) for at, mask in masks]
        # SAFETY: the addresses are of objects that `_kept` holds; none of them moves.
        self._rows = (ctypes.c_uint64 * (ROW_WORDS * len(rows)))(*(word for row in rows for word in row))
        self._address = ctypes.addressof(self._rows)
        self._count = len(rows)
        self._flags = tuple(tensor.requires_grad for tensor in tensors)
        self._compare = _comparer()

    def rows(self) -> list[Row] | None:
        """Everything that is watched as words of memory, if all of it is."""
        layout = grad_layout()
        if layout is None:
            return None
        numbers = iter(self._rows[: ROW_WORDS * self._count])
        rows = list(zip(numbers, numbers, numbers, strict=True))
        return rows + [row for tensor in self._kept[1] for row in requires_grad_rows(tensor, layout)]

    def holds(self) -> bool:
        """Whether nothing has changed. False may be a false alarm (a dictionary was written without changing it)."""
        return self._compare(self._address, self._count) == 0 and self._flags == tuple(
            [tensor.requires_grad for tensor in self._kept[1]]
        )


def can_watch(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these tensors can be watched here."""
    return bool(tensor_masks()) and _versions_count() and all(tensor.dim() <= MOST_DIMENSIONS for tensor in tensors)


def name_row(container: Any, value: Any) -> Row | None:
    """Give the word that says that a name still stands for a value, if there is one: in a closure, or in a dictionary.

    Of a dictionary it is the version: it also tells when another name of it has changed.
    """
    if type(container) is CellType and _cells_are_known():
        return id(container) + CELL_OFFSET, EVERY_BIT, id(value)
    if type(container) is dict and _versions_count():
        return id(container) + VERSION_OFFSET, EVERY_BIT, _word(id(container) + VERSION_OFFSET)
    return None


def container_rows(thing: Any, can_change: Callable[[Any, int], bool], depth: int = 0) -> list[Row] | None:
    """Give the words that say that what is inside a container is what it was, for those inside that can change too.

    None where that cannot be told from memory. Whoever compares the words holds the container, and compares them in
    this order: a row that leads to memory comes before those in it.
    """
    kind = type(thing)
    rows: list[Row] = []
    if kind is list and _lists_are_known():
        items = _word(id(thing) + LIST_ITEMS_OFFSET)
        rows += [(id(thing) + at, EVERY_BIT, _word(id(thing) + at)) for at in (LIST_SIZE_OFFSET, LIST_ITEMS_OFFSET)]
        rows += [(items + 8 * place, EVERY_BIT, id(item)) for place, item in enumerate(thing)]
    elif kind is dict and _versions_count():
        rows.append((id(thing) + VERSION_OFFSET, EVERY_BIT, _word(id(thing) + VERSION_OFFSET)))
    elif kind is not tuple:
        return None
    for item in list(thing.values() if kind is dict else thing):  # another thread may change it meanwhile
        inner = container_rows(item, can_change, depth + 1) if can_change(item, depth + 1) else []
        if inner is None:
            return None
        rows += inner
    return rows


@cache
def _lists_are_known() -> bool:
    """Whether a list has its length and its items where they are expected."""
    things = [object(), object(), object()]
    items = _word(id(things) + LIST_ITEMS_OFFSET)
    return _word(id(things) + LIST_SIZE_OFFSET) == len(things) and _word(items + 8) == id(things[1])


@cache
def _cells_are_known() -> bool:
    """Whether a closure's cell has its object where it is expected."""
    cells = [(CellType(thing), thing) for thing in (object(), object(), object())]
    return all(_word(id(cell) + CELL_OFFSET) == id(thing) for cell, thing in cells)


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
    for size in range(128, 320, 16):
        blocks = [torch.full((size,), byte, dtype=torch.uint8) for _ in range(4 * PROBES)]
        del blocks


def _same_bits(words: list[int]) -> int:
    """The bits of whole bytes that agree in all words; none of what may be a pointer."""
    if all(word % 8 == 0 and LEAST_POINTER < word < 1 << 48 for word in words):
        return 0
    differing = 0
    for word in words:
        differing |= word ^ words[0]
    return sum(0xFF << 8 * byte for byte in range(8) if not differing >> 8 * byte & 0xFF)


@cache
def _versions_count() -> bool:
    """Whether dictionaries have versions where they are expected."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] > LAST_WITH_VERSIONS:
        return False
    probe = {"entry": 0}
    seen = {_word(id(probe) + VERSION_OFFSET)}
    for number in range(1, 5):
        probe["entry"] = number
        seen.add(_word(id(probe) + VERSION_OFFSET))
    changed = len(seen) == 5
    before = _word(id(probe) + VERSION_OFFSET)
    probe.get("entry")
    return changed and _word(id(probe) + VERSION_OFFSET) == before


@cache
def _comparer() -> Any:
    # PYFUNCTYPE keeps the interpreter's lock: nobody changes a dictionary while it is compared.
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_int64)(shared_library(emit_watch).address(WATCH))


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor._cdata, TENSOR_BYTES)
