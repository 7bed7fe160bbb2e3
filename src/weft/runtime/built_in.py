"""Make built-in functions of Python from native code, each bound to the words that it reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from struct import pack
from typing import Any

import torch

from weft.codegen.calls.native_call import CallWord
from weft.codegen.calls.python_calls import python_calls_module
from weft.runtime.memory_layout import object_layout
from weft.runtime.shared_code import shared_library
from weft.target import Target

METHOD_FASTCALL, METHOD_KEYWORDS = 0x0080, 0x0002


class Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_methods: dict[str, Method] = {}


def built_in(name: str, bound_to: object, text: Callable[[Target], str] | None = None, *, by_name: bool = False) -> Any:
    """Make a built-in function of the one of this name in a module's text, by default that of all program calls.

    It holds what it is bound to. With `by_name` it takes arguments by name, too.
    """
    method = _methods.get(name)
    if method is None:
        flags = METHOD_FASTCALL | METHOD_KEYWORDS if by_name else METHOD_FASTCALL
        address = shared_library(python_calls if text is None else text).address(name)
        # Every description stays, because functions made from it point to it.
        method = _methods.setdefault(name, Method(f"weft {name}".encode(), address, flags, None))
    return _maker()(ctypes.addressof(method), bound_to, None)


def python_calls(target: Target) -> str:
    """Write the module of the functions that Python calls; some need to know how tensors lie in memory."""
    return python_calls_module(object_layout(), target)


@cache
def _maker() -> Any:
    """Give Python's own function that makes a built-in function of a description and what it is bound to."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return kind(python_address("PyCFunction_NewEx"))


@cache
def python_words() -> dict[CallWord, int]:
    """Give the words of a state that are Python's own objects and functions."""
    return {
        CallWord.NONE: id(None),
        CallWord.FALSE: id(False),
        CallWord.ADD_REFERENCE: python_address("Py_IncRef"),
        CallWord.DROP_REFERENCE: python_address("Py_DecRef"),
        CallWord.AS_ADDRESS: python_address("PyLong_AsUnsignedLongLong"),
        CallWord.RELEASE_LOCK: python_address("PyEval_SaveThread"),
        CallWord.TAKE_LOCK: python_address("PyEval_RestoreThread"),
        CallWord.LIST_TYPE: id(list),
        CallWord.TUPLE_TYPE: id(tuple),
        CallWord.TENSOR_TYPE: id(torch.Tensor),
        CallWord.PARAMETER_TYPE: id(torch.nn.Parameter),
        CallWord.NEW_LIST: python_address("PyList_New"),
        CallWord.COPY: python_address("memcpy"),
        CallWord.FILL: python_address("memset"),
        CallWord.COMPARE: python_address("memcmp"),
        CallWord.NEW_INT: python_address("PyLong_FromLongLong"),
        CallWord.NEW_FLOAT: python_address("PyFloat_FromDouble"),
        CallWord.DICTIONARY_SIZE: python_address("PyDict_Size"),
        CallWord.DICTIONARY_NEXT: python_address("PyDict_Next"),
        CallWord.VECTORCALL: python_address("PyObject_Vectorcall"),
    }


def python_address(name: str) -> int:
    """Give the address of a function of Python's, or of the C library that it is linked with."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def state_of(kind: type[IntEnum], words: Mapping[Any, int]) -> bytes:
    """Put the words of a kind in a row, as native code reads them; those that are not given are 0."""
    return pack(f"@{len(kind)}Q", *(words.get(word, 0) for word in kind))


def table_of(rows: Sequence[tuple[int, ...]], *, signed: bool = False) -> ctypes.Array[Any]:
    """Put rows of words in memory, one after the other."""
    numbers = [number for row in rows for number in row]
    return ((ctypes.c_int64 if signed else ctypes.c_uint64) * max(len(numbers), 1))(*numbers)
