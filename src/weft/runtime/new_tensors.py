"""Make all tensors that a program gives in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.codegen.calls.new_tensors import NewTensorWord
from weft.codegen.torch_functions import tensor_functions
from weft.runtime.built_in import built_in, python_address, state_of, table_of
from weft.runtime.memory_layout import object_layout


@dataclass(frozen=True, slots=True)
class OutputType:
    """What a tensor that a program makes looks like."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


# As in PyTorch's stable C interface, where these numbers never change.
TYPE_NUMBERS = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}


NewTensorsCall = Callable[[], Any]


class NewTensors:
    """Makes tensors of these types on the CPU, with whatever their memory held before."""

    def __init__(self, types: Sequence[OutputType]) -> None:
        self.types = tuple(types)
        self.native = _native(self.types)

    def __call__(self) -> tuple[torch.Tensor, ...]:
        """Make them."""
        # Where the native function gives False there is no memory: PyTorch's own says so, and how much was asked for.
        return self.native() or tuple(
            [torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype) for kind in self.types]
        )


def _native(types: Sequence[OutputType]) -> NewTensorsCall:
    if not types or any(kind.dtype not in TYPE_NUMBERS for kind in types):
        return tuple
    rows, places = result_rows(types)
    return native_maker(len(types), rows, places) or tuple


def native_maker(count: int, rows: ctypes.Array[Any], kept: object = None) -> NewTensorsCall | None:
    """Give what makes tensors that rows describe, as they are when it is called; None where nothing native does.

    It gives False where there is no memory. It holds the rows, and what is to be kept.
    """
    functions, layout = tensor_functions(), object_layout()
    if functions is None or layout is None:
        return None
    empty, delete, wrap = functions
    words = {
        NewTensorWord.COUNT: count,
        NewTensorWord.ROWS: ctypes.addressof(rows),
        NewTensorWord.EMPTY: empty,
        NewTensorWord.WRAP: wrap,
        NewTensorWord.DELETE: delete,
        NewTensorWord.NEW_TUPLE: python_address("PyTuple_New"),
        NewTensorWord.DROP_REFERENCE: python_address("Py_DecRef"),
        NewTensorWord.ADD_REFERENCE: python_address("Py_IncRef"),
        NewTensorWord.CLEAR_ERROR: python_address("PyErr_Clear"),
        NewTensorWord.FALSE: id(False),
    }
    # SAFETY: the function holds this tuple, and the tuple the tables that the state points to.
    found: NewTensorsCall = built_in("new_tensors", (state_of(NewTensorWord, words), rows, kept))
    return found


def result_rows(types: Sequence[OutputType]) -> tuple[ctypes.Array[Any], object]:
    """Write what native code that makes such tensors reads of each; and give what must live as long as that."""
    places = {sizes: table_of([sizes], signed=True) for kind in types for sizes in (kind.shape, kind.strides)}
    rows = [
        (
            len(kind.shape),
            ctypes.addressof(places[kind.shape]),
            ctypes.addressof(places[kind.strides]),
            TYPE_NUMBERS[kind.dtype],
        )
        for kind in types
    ]
    return table_of(rows), places
