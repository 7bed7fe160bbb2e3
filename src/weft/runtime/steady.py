"""Check all guards in one native call over (address, mask, expected) words.

A watch looks at the version that CPython keeps of every dictionary (a module's attributes, parameters, submodules,
hooks) and at the bytes in which PyTorch keeps a tensor's sizes, strides and element type (see memory_layout.py). Where
these are not known there is no watch, and the facts are compared one by one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from weft.codegen.calls.watching import ROW_WORDS, WATCH
from weft.runtime.fast_call import python_calls
from weft.runtime.memory_layout import (
    Row,
    dictionary_rows,
    grad_layout,
    requires_grad_rows,
    tensor_masks,
    versions_count,
    word,
)
from weft.runtime.shared_code import shared_library

MOST_DIMENSIONS = 5  # sizes of more dimensions lie in memory of their own


class Steady:
    """Watches dictionaries, tensors and other words of memory as they are when it is made.

    Dictionaries and tensors are kept alive as long as it is; whoever gives other words keeps what they are words of.
    """

    def __init__(
        self, dictionaries: Sequence[dict[Any, Any]], tensors: Sequence[torch.Tensor], others: Sequence[Row] = ()
    ) -> None:
        self._kept = (tuple(dictionaries), tuple(tensors))
        rows = [row for entry in dictionaries for row in dictionary_rows(entry) or ()]
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


@cache
def _comparer() -> Any:
    # PYFUNCTYPE keeps the interpreter's lock: nobody changes a dictionary while it is compared.
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_int64)(
        shared_library(python_calls).address(WATCH)
    )
