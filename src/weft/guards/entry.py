"""Make the native entry of a kind of calls: a built-in function that compares words, and runs the program.

It is called as the function that it stands for. A call that looks otherwise, or comes in other modes, gets MISSED from
it, and goes the longer way, which knows everything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.codegen.calls.native_call import CallWord
from weft.codegen.torch_functions import tensor_functions
from weft.guards.guarded import NewResults, TakenLeaves
from weft.guards.likeness import Likeness
from weft.guards.words import Told, agree
from weft.runtime.arena import BlockPool
from weft.runtime.binding import BoundProgram
from weft.runtime.built_in import built_in, python_address, python_words, state_of, table_of
from weft.runtime.memory_layout import grad_layout
from weft.runtime.new_tensors import TYPE_NUMBERS, result_rows

Entry = Callable[..., Any]

NEW_ROWS: dict[type, str] = {list: "PyList_New", tuple: "PyTuple_New"}
MOST_BYTES, MOST_OF_MANY = 1 << 20, 1 << 23
"""Of a frame: an entry keeps one for itself, and a program that needs a larger one runs long anyway; but for a program
of many sizes, of which calls for small ones hardly touch what the largest need."""

MOST_UNSEEN = 32
"""Calls of the same sizes that a program for many runs before Python sees one of them."""


class Missed:
    """What a call gets that is not one of those that an entry is for."""

    def __repr__(self) -> str:
        return "MISSED"


MISSED = Missed()


def refuse_all(*_: object, **__: object) -> Any:
    """Stand for an entry where there is none."""
    return MISSED


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """What an entry calls in Python: `runs` with a program's inputs, `checks` with leaves whose facts have no words.

    Where `takes_containers`, both get the containers of the call, too. `told` is a list of one, what words tell.
    """

    told: list[Told | None]
    runs: Callable[..., Any]
    checks: Callable[..., Any]
    takes_containers: bool = False


def make_entry(
    likeness: Likeness, taken: TakenLeaves, ways: Ways, bound: list[Any], *, by_sizes: bool = False
) -> Entry:
    """Make the entry of calls of a likeness; what is put into `bound`, a list of one, it runs from then on.

    With `by_sizes` that is a table of what it runs for which sizes.
    """
    leaves = likeness.leaves
    arguments, numbers, apart = (
        [leaves[place] for place in places] for places in (taken.arguments, taken.numbers, taken.apart)
    )
    given = likeness.containers if ways.takes_containers else ()
    tables = {
        CallWord.INPUTS: table_of([(place,) for place in (*arguments, *numbers)]),
        CallWord.APART: table_of([(place,) for place in apart]),
        CallWord.LEAVES: table_of([(place,) for place in leaves]),
        CallWord.GIVEN: table_of([(place,) for place in given]),
    }
    words = {
        **python_words(),
        **likeness.words,
        **{name: ctypes.addressof(table) for name, table in tables.items()},
        CallWord.BEFORE_COUNT: len(arguments),
        CallWord.AFTER_COUNT: len(numbers),
        CallWord.APART_COUNT: len(apart),
        CallWord.LEAF_COUNT: len(leaves),
        CallWord.GIVEN_COUNT: len(given),
        CallWord.GUARD: id(ways.told),
        CallWord.BOUND: id(bound),
        CallWord.BY_SIZES: by_sizes,
        CallWord.RUNS: id(ways.runs),
        CallWord.CHECKS: id(ways.checks),
        CallWord.REFUSED: id(MISSED),
    }
    # SAFETY: a caller holds the function while it runs, the function holds this tuple, and the tuple the tables, lists
    # and functions that the state points to.
    entry: Entry = built_in("entry", (state_of(CallWord, words), tables, likeness, ways, bound), by_name=True)
    return entry


class Room:
    """A frame, and room for the results of a call: of programs that share it one runs at a time."""

    def __init__(self, pool: BlockPool, results: int) -> None:
        self.block = pool.take()
        self.frame = ctypes.c_uint64(self.block.address)
        self.made = table_of([(0,) * results])


class BoundRun:
    """A bound program as an entry runs it: `state` is what goes into the entry's list, or into a table by sizes."""

    def __init__(self, program: BoundProgram, results: NewResults, told: Told, room: Room) -> None:
        code, kinds = program.code, results.types
        self.room, self._left = room, ctypes.c_int64(MOST_UNSEEN)
        self._rows, self._captured = program.rows, told[1]
        rows, sizes = result_rows(kinds)
        tables = {
            CallWord.ROWS: table_of(program.rows),
            CallWord.CHANGING: table_of(code.changing),
            CallWord.LASTING: table_of([tuple(program.words)]),
            CallWord.RESULTS: rows,
            CallWord.MADE: room.made,
            CallWord.FRAME: room.frame,
        }
        if program.moves is not None:
            tables |= {CallWord.MOVES: program.moves, CallWord.LEFT: self._left}
        empty, delete, wrap = tensor_functions() or (0, 0, 0)
        words = {
            **python_words(),
            **code.words(),
            **{name: ctypes.addressof(table) for name, table in tables.items()},
            CallWord.ROW_COUNT: len(program.rows),
            CallWord.CHANGING_COUNT: len(code.changing),
            CallWord.LASTING_COUNT: len(program.words),
            CallWord.OUTPUT_COUNT: len(kinds),
            CallWord.NEW_ROW: 0 if results.row is None else python_address(NEW_ROWS[results.row]),
            CallWord.EMPTY: empty,
            CallWord.WRAP: wrap,
            CallWord.DELETE: delete,
            CallWord.CAPTURED: id(told[1]),
            CallWord.FINISH: 0 if results.finish is None else id(results.finish),
        }
        # SAFETY: who runs it holds this tuple, and the tuple the tables, the frame, the code, and the tensors.
        kept: tuple[object, ...] = (tables, sizes, room, program.kept, told[1], results.finish)
        self.state = (state_of(CallWord, words), kept)

    def is_current(self, told: Told | None) -> bool:
        """Whether it may still run, but for a frame."""
        return told is not None and told[1] is self._captured and agree(self._rows)

    def may_run_on(self) -> int:
        """Let one of a table by sizes run as often as it may until Python looks again; gives how often it has run."""
        done, self._left.value = MOST_UNSEEN - self._left.value, MOST_UNSEEN
        return done


def bound_run(
    found: tuple[BoundProgram, NewResults] | None, told: Told | None, room: Room | None = None
) -> BoundRun | None:
    """Give a bound program as an entry runs it, if one can; it has a room of its own, or shares one."""
    if found is None or told is None or grad_layout() is None or tensor_functions() is None:
        return None
    (program, results) = found
    types = results.types
    most = MOST_BYTES if program.moves is None else MOST_OF_MANY
    if program.pool.size > most or not types or any(kind.dtype not in TYPE_NUMBERS for kind in types):
        return None
    return BoundRun(program, results, told, room or Room(program.pool, len(types)))
