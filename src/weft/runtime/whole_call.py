"""Make the built-in function that stands for a hybridized one in the common case: guards, then the program.

That case is a program of one region in machine code that makes new tensors of plain tensors, called in the same modes,
with arguments that look as before, while no parameter, attribute or hook has changed. Whatever else comes gets False
from it, and goes the longer way, which knows everything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from struct import pack
from typing import Any

import torch

from weft.codegen.calls.fast_call import State
from weft.codegen.torch_functions import mode_functions, tensor_functions
from weft.runtime.arena import ArenaBlock, BlockPool
from weft.runtime.fast_call import (
    FastProgram,
    Method,
    make_function,
    python_address,
    python_calls,
    python_words,
    table_of,
)
from weft.runtime.memory_layout import EVERY_BIT, Row, grad_layout, object_layout, tensor_masks, word
from weft.runtime.new_tensors import TYPE_NUMBERS, OutputType, result_rows
from weft.runtime.shared_code import shared_library

Whole = Callable[..., Any]


NEW_ROWS: dict[type, str] = {list: "PyList_New", tuple: "PyTuple_New"}
MOST_ARGUMENTS = 32  # each two of them are compared
MOST_BYTES = 1 << 20
"""Of a frame: a whole call keeps one for itself, and a program that needs a larger one runs long anyway."""


def refuse_all(*_: object) -> bool:
    """Stand for a whole call where there is none."""
    return False


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program with lasting inputs: `rows` say that they are current, `kept` must live as long as it may run.

    `changing` of the program are positions of a call's arguments. `words` is the lasting part of the frame's table, and
    `pool` has the frames.
    """

    program: FastProgram
    rows: Sequence[Row]
    words: Sequence[int]
    pool: BlockPool
    kept: object


@dataclass(frozen=True, slots=True)
class Given:
    """What the results look like, and in what they are given: a list, a tuple, or nothing where it is one tensor."""

    types: tuple[OutputType, ...]
    row: type | None = None


@dataclass(frozen=True, slots=True)
class Likeness:
    """What must be as it was: `guards` in memory, the arguments' looks; and what is given."""

    guards: Sequence[Row]
    arguments: Sequence[torch.Tensor]
    given: Given
    kept: object


class WholeCall:
    """The built-in function, as `call`; what it reads lives as long as that."""

    def __init__(self, bound: BoundProgram, likeness: Likeness, block: ArenaBlock) -> None:
        program, given, arguments = bound.program, likeness.given, likeness.arguments
        rows = [*likeness.guards, *bound.rows]
        modes = [(place, number, bits, _answer(place, number) & bits) for place, number, bits in mode_functions() or ()]
        frame = ctypes.c_uint64(block.address)
        results, sizes = result_rows(given.types)
        tables = {
            State.ROWS: table_of(rows),
            State.MODES: table_of(modes),
            State.LOOKS: table_of(_looks(arguments)),
            State.TYPES: table_of([(id(type(tensor)),) for tensor in arguments]),
            State.IDENTITIES: table_of(identities(arguments, range(len(arguments)))),
            State.CHANGING: table_of(program.changing),
            State.LASTING: table_of([tuple(bound.words)]),
            State.RESULTS: results,
            State.MADE: table_of([(0,) * len(given.types)]),
            State.FRAME: frame,
        }
        empty, delete, wrap = tensor_functions() or (0, 0, 0)
        words = {
            **dict.fromkeys(State, 0),
            **python_words(),
            **{name: ctypes.addressof(table) for name, table in tables.items()},
            State.RUN: program.run,
            State.PROGRAM: program.description,
            State.CREW: program.crew,
            State.CHECK: program.check,
            **program.content_words(),
            State.INPUT_COUNT: len(arguments),
            State.ROW_COUNT: len(rows),
            State.MODE_COUNT: len(modes),
            State.LOOK_COUNT: len(_looks(arguments)),
            State.IDENTITY_COUNT: len(arguments) * (len(arguments) - 1) // 2,
            State.CHANGING_COUNT: len(program.changing),
            State.LASTING_COUNT: len(bound.words),
            State.OUTPUT_COUNT: len(given.types),
            State.NEW_ROW: 0 if given.row is None else python_address(NEW_ROWS[given.row]),
            State.DROP_REFERENCE: python_address("Py_DecRef"),
            State.EMPTY: empty,
            State.WRAP: wrap,
            State.DELETE: delete,
        }
        state = pack(f"@{len(State)}Q", *(words[name] for name in State))
        kept = (tables, sizes, block, bound.kept, likeness.kept)
        # SAFETY: a caller holds the function while it runs, the function holds this tuple, and the tuple the tables,
        # the frame, the code and the tensors that the state points to.
        self.call: Whole = make_function()(ctypes.addressof(_method()), (state, kept), None)


def identities(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> list[tuple[int, int, bool]]:
    """For each two places of tensors whether they hold the very same one: Python can tell by `is`."""
    every = range(len(tensors))
    return [(places[one], places[other], tensors[one] is tensors[other]) for other in every for one in every[:other]]


def whole_call(bound: BoundProgram, likeness: Likeness) -> Whole | None:
    """Make the function for arguments like these, in the modes of now, if there can be one."""
    grad = grad_layout()
    if grad is None or object_layout() is None or not tensor_masks() or None in (mode_functions(), tensor_functions()):
        return None
    # What autograd knows of an argument is not compared: nothing must be known.
    is_known = any(word(argument._cdata + grad.known) for argument in likeness.arguments)
    types = likeness.given.types
    if len(likeness.arguments) > MOST_ARGUMENTS:
        return None
    if is_known or bound.pool.size > MOST_BYTES or not types or any(kind.dtype not in TYPE_NUMBERS for kind in types):
        return None
    return WholeCall(bound, likeness, bound.pool.take()).call


def _looks(arguments: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Give the words that say what each argument looks like: (position, offset, bits, what they are)."""
    layout = grad_layout()
    assert layout is not None
    masks = (*tensor_masks(), (layout.known, EVERY_BIT))
    return [
        (position, at, mask, word(argument._cdata + at) & mask)
        for position, argument in enumerate(arguments)
        for at, mask in masks
    ]


@cache
def _asker() -> Any:
    return ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)


def _answer(place: int, number: int) -> int:
    return int(_asker()(place)(number))


_methods: list[Method] = []


def _method() -> Method:
    """Describe the function to Python; the description stays, because functions made from it point to it."""
    if not _methods:
        _methods.append(Method.of("weft program", shared_library(python_calls).address("whole_call")))
    return _methods[0]
