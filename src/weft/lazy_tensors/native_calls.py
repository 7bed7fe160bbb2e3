"""Replace PyTorch's and Python's own functions that lazy code calls at each operator by built-in ones.

Where they cannot be had (another Python, another PyTorch) others in Python do the same, more slowly.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from struct import pack
from typing import Any

import torch

from weft.codegen.calls.lazy_calls import PlaceholderWord, StrangerWord, lazy_calls_module
from weft.codegen.calls.native_call import ObjectLayout
from weft.codegen.torch_functions import copy_functions, dispatch_keys, thread_functions
from weft.runtime.built_in import built_in, python_address, state_of, table_of
from weft.runtime.memory_layout import (
    TENSOR_BYTES,
    WORD,
    object_layout,
    probed,
    storage_object_place,
    tensor_layout,
    word,
)
from weft.target import Target

Modes = Callable[[], int]
Keys = Callable[[torch.Tensor], int]
Maker = Callable[[Any], Any]
Question = Callable[[Any], bool]
STACK_PLACE = 7
ONE_FUNCTION_MODE = 1 << STACK_PLACE
"""What one more torch function mode adds to the number that `modes` gives."""
# Bits that count of each answer, and where they go, in the order of `thread_functions`: flags, then the state of
# interception, the number of function modes, and the default type. All of it is a number that Python compares fast.
SHIFTS = (*((1, place) for place in range(5)), (3, 5), (0xFF, STACK_PLACE), (0xFF, STACK_PLACE + 8))


@cache
def native_modes() -> Modes | None:
    """Give a function that tells the modes of its thread as a number; None where there is none."""
    layout, rows = object_layout(), thread_functions()
    if layout is None or rows is None:
        return None
    words = [python_address("PyLong_FromUnsignedLongLong"), *(word for row in rows for word in row)]
    found: Modes = built_in("modes", pack(f"@{len(words)}Q", *words), _text)
    return found


@probed
def _keys_offset() -> int | None:
    """Find where a tensor has its dispatch keys."""
    tensors = [
        torch.zeros(2),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
        torch.zeros(2, dtype=torch.bool),
    ]
    keys = [dispatch_keys(tensor) for tensor in tensors]
    places = [
        at
        for at in range(0, TENSOR_BYTES, WORD)
        if all(word(tensor._cdata + at) == key for tensor, key in zip(tensors, keys, strict=True))
    ]
    return places[0] if len(places) == 1 and len(set(keys)) > 1 else None


@cache
def native_keys() -> Keys | None:
    """Give a function that tells the dispatch keys of what is a tensor for sure; None where there is none."""
    layout, place = object_layout(), _keys_offset()
    if layout is None or place is None:
        return None
    words = pack("@2Q", python_address("PyLong_FromUnsignedLongLong"), place)
    found: Keys = built_in("keys", words, _text)
    return found


@probed
def usual_keys() -> int:
    """Give the keys of a tensor on the CPU that is dense, and no negation, conjugate, quantized or inference tensor."""
    return dispatch_keys(torch.zeros(()))


def placeholder_maker(template: torch.Tensor, name: str) -> Maker | None:
    """Give a function that makes tensors like a template, of its class, with what it is given as an attribute.

    None where there is none. A template without memory has tensors without memory.
    """
    kind, name = type(template), sys.intern(name)
    layout, functions, keys = object_layout(), copy_functions(), _keys_offset()
    if layout is None or functions is None or keys is None:
        return None
    copy, wrap, delete = functions
    sizes, strides = table_of([tuple(template.shape)], signed=True), table_of([template.stride()], signed=True)
    words = {
        PlaceholderWord.COPY: copy,
        PlaceholderWord.TEMPLATE: id(template) + layout.tensor,
        PlaceholderWord.DIMENSIONS: template.dim(),
        PlaceholderWord.SIZES: ctypes.addressof(sizes),
        PlaceholderWord.STRIDES: ctypes.addressof(strides),
        PlaceholderWord.WRAP: wrap,
        PlaceholderWord.TYPE: id(kind),
        PlaceholderWord.DELETE: delete,
        PlaceholderWord.SET: python_address("PyObject_SetAttr"),
        PlaceholderWord.NAME: id(name),
        PlaceholderWord.DROP_REFERENCE: python_address("Py_DecRef"),
        PlaceholderWord.NO_MEMORY: python_address("PyErr_NoMemory"),
        PlaceholderWord.KEYS: keys,
    }
    kept = (template, sizes, strides, name)
    found: Maker = built_in("placeholder", (state_of(PlaceholderWord, words), kept), _text)
    return found


@cache
def native_strangers() -> Question:
    """Give a function that tells whether a list or tuple has only plain tensors whose memory Python has no object of.

    Where there is none, one that never says so.
    """
    layout, tensor, place = object_layout(), tensor_layout(), storage_object_place()
    if layout is None or tensor is None or place is None:
        return _not_for_sure
    words = {
        StrangerWord.LIST_TYPE: id(list),
        StrangerWord.TUPLE_TYPE: id(tuple),
        StrangerWord.TENSOR_TYPE: id(torch.Tensor),
        StrangerWord.PARAMETER_TYPE: id(torch.nn.Parameter),
        StrangerWord.STORAGE: tensor.storage,
        StrangerWord.OBJECT: place,
        StrangerWord.TRUE: id(True),
        StrangerWord.FALSE: id(False),
        StrangerWord.ADD_REFERENCE: python_address("Py_IncRef"),
    }
    found: Question = built_in("strangers", state_of(StrangerWord, words), _text)
    return found


def _not_for_sure(things: Any) -> bool:
    del things
    return False


def _text(target: Target) -> str:
    del target
    layout = object_layout()
    assert isinstance(layout, ObjectLayout)
    return lazy_calls_module(layout, SHIFTS)
