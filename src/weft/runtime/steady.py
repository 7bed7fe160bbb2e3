"""What must not have changed -> one native comparison of memory, instead of a Python one for each fact.

A watch looks at the version that CPython keeps of every dictionary (a module's attributes, parameters, submodules,
hooks) and at the bytes in which PyTorch keeps a tensor's sizes, strides and element type. Which bytes these are is
found out at first use, by comparing tensors that differ in nothing but their memory; where that does not come out as
expected (another Python, another PyTorch) there is no watch, and the facts are compared one by one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from weft.codegen.calls.watching import ROW_WORDS, WATCH
from weft.runtime.fast_call import python_calls
from weft.runtime.object_words import LEAST_POINTER, MOST_POINTER, version_rows, versions_count
from weft.runtime.shared_code import shared_library
from weft.runtime.tensor_words import Row, grad_layout, probed, requires_grad_rows, word

TENSOR_BYTES, MOST_TENSOR_BYTES = 176, 256  # compared, and those that a tensor's object may have
FIRST_BYTE = 16  # behind the reference count
PROBES = 16
WORDS_OF_TENSOR = range(FIRST_BYTE, TENSOR_BYTES, 8)
MOST_DIMENSIONS = 5  # sizes of more dimensions lie in memory of their own


class Steady:
    """Watches dictionaries, tensors and other words of memory as they are when it is made.

    Dictionaries and tensors are kept alive as long as it is; whoever gives other words keeps what they are words of.
    """

    def __init__(
        self, dictionaries: Sequence[dict[Any, Any]], tensors: Sequence[torch.Tensor], others: Sequence[Row] = ()
    ) -> None:
        self._kept = (tuple(dictionaries), tuple(tensors))
        rows = [row for entry in dictionaries for row in version_rows(entry) or ()]
        rows += others
        masks = tensor_masks()
        for tensor in tensors:
            address = tensor._cdata
            rows += [(address + at, mask, word(address + at) & mask) for at, mask in masks]
        # SAFETY: the addresses are of objects that `_kept` holds; none of them moves.
        self._rows = (ctypes.c_uint64 * (ROW_WORDS * len(rows)))(*(number for row in rows for number in row))
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
    return bool(tensor_masks()) and versions_count() and all(tensor.dim() <= MOST_DIMENSIONS for tensor in tensors)


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
    for size in range(TENSOR_BYTES, MOST_TENSOR_BYTES + 1, 16):
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


@cache
def _comparer() -> Any:
    # PYFUNCTYPE keeps the interpreter's lock: nobody changes a dictionary while it is compared.
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_int64)(
        shared_library(python_calls).address(WATCH)
    )


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor._cdata, TENSOR_BYTES)
