"""Make the built-in function that runs a program for some lasting inputs; see weft.codegen.calls.fast_call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from struct import pack
from typing import Any

import torch

from weft.codegen.calls.fast_call import State
from weft.codegen.calls.python_calls import python_calls_module
from weft.runtime.content import SameContent
from weft.runtime.memory_layout import Row, object_layout
from weft.runtime.shared_code import shared_library
from weft.target import Target

METHOD_FASTCALL = 0x0080
Fast = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], int], bool | None]


class Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )

    @classmethod
    def of(cls, name: str, address: int) -> Method:
        """Describe native code as a method that takes its arguments as an array."""
        return cls(name.encode(), address, METHOD_FASTCALL, None)


@dataclass(frozen=True, slots=True)
class FastProgram:
    """What a fast call needs of a program.

    Its function, the one that checks a call before it (or 0), what describes it to a crew of workers, (position, bytes
    of an element) of changing tensors, and what tells whether its weights have the same bytes, where nothing else does.
    """

    run: int
    check: int
    description: int
    crew: int
    input_count: int
    changing: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    content: SameContent | None = None

    def content_words(self) -> dict[State, int]:
        """Give what tells of the weights' bytes, in a state's words."""
        content = self.content
        return {} if content is None else {State.SAME_CONTENT: content.run, State.CONTENT: content.description}


class FastCall:
    """The built-in function of a program for some lasting inputs, given as (position, object)."""

    def __init__(
        self,
        program: FastProgram,
        same: Sequence[tuple[int, torch.Tensor]],
        rows: Sequence[Row],
        lasting: Sequence[int],
    ) -> None:
        self._tables = [
            table_of(rows),
            table_of([(position, id(tensor)) for position, tensor in same]),
            table_of(program.changing),
            table_of(program.outputs),
            table_of([tuple(lasting)]),
        ]
        addresses = [ctypes.addressof(table) for table in self._tables]
        words = {
            **dict.fromkeys(State, 0),
            **python_words(),
            State.RUN: program.run,
            State.INPUT_COUNT: program.input_count,
            State.OUTPUT_COUNT: len(program.outputs),
            State.ROWS: addresses[0],
            State.ROW_COUNT: len(rows),
            State.SAME: addresses[1],
            State.SAME_COUNT: len(same),
            State.CHANGING: addresses[2],
            State.CHANGING_COUNT: len(program.changing),
            State.OUTPUTS: addresses[3],
            State.LASTING: addresses[4],
            State.LASTING_COUNT: len(lasting),
            State.PROGRAM: program.description,
            State.CREW: program.crew,
            State.CHECK: program.check,
            **program.content_words(),
        }
        state = pack(f"@{len(State)}Q", *(words[name] for name in State))
        self.call: Fast = make_function()(ctypes.addressof(_method()), state, None)


def refuse(*_: object) -> bool:
    """Stand for a fast call where there is none."""
    return False


def python_calls(target: Target) -> str:
    """Write the module of the functions that Python calls; some need to know how tensors lie in memory."""
    return python_calls_module(object_layout(), target)


_methods: list[Method] = []


def _method() -> Method:
    """Describe the function to Python; every description stays, because functions made from it point to it."""
    if not _methods:
        address = shared_library(python_calls).address("fast_call")
        _methods.append(Method.of("weft program", address))
    return _methods[0]


@cache
def make_function() -> Any:
    """Give Python's own function that makes a built-in function of a description and what it is bound to."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return kind(python_address("PyCFunction_NewEx"))


@cache
def python_words() -> dict[State, int]:
    """Give the words of a state that are Python's own objects and functions."""
    return {
        State.NONE: id(None),
        State.FALSE: id(False),
        State.ADD_REFERENCE: python_address("Py_IncRef"),
        State.AS_ADDRESS: python_address("PyLong_AsUnsignedLongLong"),
        State.RELEASE_LOCK: python_address("PyEval_SaveThread"),
        State.TAKE_LOCK: python_address("PyEval_RestoreThread"),
        State.LIST_TYPE: id(list),
        State.TUPLE_TYPE: id(tuple),
        State.TENSOR_TYPE: id(torch.Tensor),
        State.PARAMETER_TYPE: id(torch.nn.Parameter),
    }


def python_address(name: str) -> int:
    """Give the address of a function of Python's."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def table_of(rows: Sequence[tuple[int, ...]], *, signed: bool = False) -> ctypes.Array[Any]:
    """Put rows of words in memory, one after the other."""
    numbers = [number for row in rows for number in row]
    return ((ctypes.c_int64 if signed else ctypes.c_uint64) * max(len(numbers), 1))(*numbers)
