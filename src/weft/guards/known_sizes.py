"""Keep bound programs for the sizes that have come often, in a table that a native entry looks into."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.codegen.calls.known_sizes import SLOT_WORDS, KnownSizesWord, slot_of
from weft.guards.back_off import BackOff
from weft.guards.entry import BoundRun, Room, bound_run
from weft.guards.guarded import NewResults
from weft.guards.likeness import Likeness
from weft.guards.words import Told
from weft.runtime.binding import BoundProgram
from weft.runtime.built_in import state_of, table_of
from weft.runtime.memory_layout import word

FIRST_SLOTS, MOST_SLOTS = 64, 1 << 12
ENOUGH = 4  # slots to a program, from which on hardly two want the same


class BoundAtSizes(Protocol):
    """What binds its program for the sizes of a call."""

    @property
    def arguments(self) -> Sequence[int]:
        """The leaves of a call that are its first inputs."""

    def bound_at(self, inputs: Sequence[Any], places: Sequence[int]) -> tuple[BoundProgram, NewResults] | None:
        """Give what runs calls of the sizes of these inputs; arguments are in these places of a call."""


class _Table:
    """Slots for bound programs; what native code reads of them is `state`."""

    def __init__(self, rows: Sequence[tuple[int, int]], slots: int, entries: Iterable[_Entry] = ()) -> None:
        self.slots = slots
        self.at: dict[int, _Entry] = {}
        self._words = table_of([(0,) * (SLOT_WORDS * slots)])
        keys = table_of(rows)
        words = {
            KnownSizesWord.KEYS: ctypes.addressof(keys),
            KnownSizesWord.KEY_COUNT: len(rows),
            KnownSizesWord.SLOTS: ctypes.addressof(self._words),
            KnownSizesWord.LAST: slots - 1,
        }
        # SAFETY: native code looks into a table while it has Python's lock, and holds what it finds there before it
        # lets go of that. The entry holds the table, and this the programs.
        self.state = (state_of(KnownSizesWord, words), keys, self)
        for entry in entries:
            self.put(entry)

    def find(self, words: list[int]) -> BoundRun | None:
        """Give the bound program for sizes."""
        entry = self.at.get(slot_of(words, self.slots - 1))
        return entry.run if entry is not None and entry.words == words else None

    def put(self, entry: _Entry) -> None:
        """Let native code find a bound program; one that had its slot is found no more, and may end then."""
        slot = slot_of(entry.words, self.slots - 1)
        first = SLOT_WORDS * slot
        self._words[first : first + SLOT_WORDS] = [id(entry.run.state), ctypes.addressof(entry.key)]
        self.at[slot] = entry  # last: until here another thread could have found the one before it


@dataclass(frozen=True, slots=True)
class _Entry:
    words: list[int]
    key: ctypes.Array[Any]  # the same for native code
    run: BoundRun


class KnownSizes:
    """The bound programs of a kind of calls by their sizes; any thread may add them.

    They share a frame, which one call has at a time: another that comes meanwhile is run by Python.
    """

    def __init__(self, guarded: BoundAtSizes, likeness: Likeness, told: list[Told | None]) -> None:
        self.bound: list[Any] = [None]
        self._guarded, self._told = guarded, told
        self._places = [likeness.leaves[leaf] for leaf in guarded.arguments]
        index = {place: number for number, place in enumerate(self._places)}
        self._rows = [row for row in likeness.size_words if row[0] in index]
        self._reads = [(index[place], at) for place, at in self._rows]
        self._is_complete = len(self._rows) == len(likeness.size_words)
        self._room: Room | None = None
        self._table: _Table | None = None
        self._attempts = BackOff(first=1)  # that fail

    def bind(self, inputs: Sequence[Any]) -> BoundRun | None:
        """Let native code run calls of these sizes from now on, as often as it may; None where it cannot."""
        if not self._is_complete:
            return None
        words, told = [word(inputs[index]._cdata + at) for index, at in self._reads], self._told[0]
        run = None if self._table is None else self._table.find(words)
        if run is not None and run.is_current(told):
            run.may_run_on()
            return run
        run = self._new(inputs, told) if self._attempts.is_due() else None
        if run is not None:
            self._attempts = BackOff(first=1)
            self._put(_Entry(words, table_of([tuple(words)]), run))
        return run

    def _new(self, inputs: Sequence[Any], told: Told | None) -> BoundRun | None:
        found = self._guarded.bound_at(inputs, self._places)
        run = bound_run(found, told, self._room)
        if run is not None:
            self._room = run.room
        return run

    def _put(self, entry: _Entry) -> None:
        # Two threads may do so at once: then one program may be found no more, and Python runs its calls.
        table = self._table
        if table is None:
            table = _Table(self._rows, FIRST_SLOTS)
        elif ENOUGH * len(table.at) >= table.slots < MOST_SLOTS:
            table = _Table(self._rows, ENOUGH * table.slots, list(table.at.values()))
        table.put(entry)
        self._table, self.bound[0] = table, table.state
