"""Compile facts to words of memory, and compare all of them in one native call.

A word is an address, the bits that count, and what they are. Words are the versions that CPython keeps of dictionaries
(a module's attributes, parameters, submodules, hooks), cells of closures, items of lists, and the bytes in which
PyTorch keeps a tensor's sizes, strides, element type and whether it requires grad (see weft.runtime.memory_layout).
Where a fact has no words it is asked in Python.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from weft.codegen.calls.native_call import ROW_WORDS, GuardWord
from weft.codegen.calls.python_calls import FIRST_DIFFERENCE
from weft.guards.back_off import BackOff
from weft.runtime.built_in import python_calls, state_of, table_of
from weft.runtime.memory_layout import (
    Row,
    grad_layout,
    place_rows,
    requires_grad_rows,
    tensor_layout,
    tensor_masks,
    word,
)
from weft.runtime.python_layout import (
    Images,
    Rows,
    class_rows,
    content_rows,
    dictionary_rows,
    held_rows,
    versions_count,
)
from weft.runtime.shared_code import shared_library
from weft.trace.python_state.backward_code import ReadByBackward
from weft.trace.python_state.facts import HOOKS, REGISTRIES, ModuleFacts, NameFact, SettingFact, can_change
from weft.trace.python_state.library_names import LibraryFact
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.reachable import Fact

MOST_DIMENSIONS = 5  # sizes of more dimensions lie in memory of their own
DICTIONARIES = (dict, OrderedDict)
Told = tuple[bytes, tuple[torch.Tensor, ...], object]
"""What an entry reads of facts: the words of their words, captured tensors, and what keeps the words alive."""


class Words:
    """Dictionaries, tensors and other words of memory as they are when this is made.

    Dictionaries and tensors are kept alive as long as it is; whoever gives other rows keeps what they are words of.
    With `places`, it matters too where the tensors' elements lie.
    """

    def __init__(
        self,
        dictionaries: Sequence[dict[Any, Any]],
        tensors: Sequence[torch.Tensor],
        others: Sequence[Row] = (),
        *,
        places: bool = False,
    ) -> None:
        self._kept = (tuple(dictionaries), tuple(tensors))
        self._places = places
        rows = [row for entry in dictionaries for row in dictionary_rows(entry) or ()]
        rows += others
        for tensor in tensors:
            rows += look_rows(tensor)
        layout, grad = tensor_layout(), grad_layout()
        if places and layout is not None:
            rows += [row for tensor in tensors for row in place_rows(tensor, layout)]
        if grad is not None:
            # Whether a view requires grad is also its base's business, which the view keeps.
            every = [one for tensor in tensors for one in (tensor, tensor._base) if one is not None]
            rows += [row for tensor in every for row in requires_grad_rows(tensor, grad)]
        self.are_all = grad is not None and (layout is not None or not places)
        self._flags = None if grad is not None else tuple(tensor.requires_grad for tensor in tensors)
        # SAFETY: the addresses are of objects that `_kept` holds; none of them moves.
        self._rows = table_of(rows)
        self._address, self._count = ctypes.addressof(self._rows), len(rows)
        self._seen = ctypes.c_uint64(0)
        self._first_difference = _comparer()

    def hold(self) -> bool:
        """Whether nothing has changed. False may be a false alarm (a dictionary was written without changing it)."""
        return self._first_difference(self._address, self._count) == 0 and (
            self._flags is None or self._flags == tuple([tensor.requires_grad for tensor in self._kept[1]])
        )

    def rows(self) -> list[Row]:
        """All of them."""
        numbers = iter(self._rows[: ROW_WORDS * self._count])
        return list(zip(numbers, numbers, numbers, strict=True))

    @property
    def have_held(self) -> bool:
        """Whether an entry has found since that nothing had changed."""
        return bool(self._seen.value)

    def places(self) -> list[int]:
        """Where the memory of tensors is, where that matters."""
        return sorted({tensor.untyped_storage().data_ptr() for tensor in self._kept[1]}) if self._places else []

    def told(self, captured: tuple[torch.Tensor, ...]) -> Told:
        """What an entry reads: where it matters where tensors lie, arguments must share no memory with them."""
        foreign = self.places()
        table = table_of([(address,) for address in foreign])
        words = {
            GuardWord.ROWS: self._address,
            GuardWord.ROW_COUNT: self._count,
            GuardWord.FOREIGN: ctypes.addressof(table),
            GuardWord.FOREIGN_COUNT: len(foreign),
            GuardWord.SEEN: ctypes.addressof(self._seen),
        }
        return state_of(GuardWord, words), captured, (self, table)


def can_watch(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether words can tell that these tensors look as before."""
    return bool(tensor_masks()) and versions_count() and all(tensor.dim() <= MOST_DIMENSIONS for tensor in tensors)


def look_rows(tensor: torch.Tensor) -> list[Row]:
    """Give the words that say what a tensor looks like."""
    address = tensor._cdata
    return [(address + at, mask, word(address + at) & mask) for at, mask in tensor_masks()]


def agree(rows: Sequence[Row]) -> bool:
    """Whether words are what they were; whoever asks holds what they are of."""
    table = table_of(rows)
    return bool(_comparer()(ctypes.addressof(table), len(rows)) == 0)


@cache
def _comparer() -> Any:
    # PYFUNCTYPE keeps the interpreter's lock: nobody changes a dictionary while it is compared.
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_int64)(
        shared_library(python_calls).address(FIRST_DIFFERENCE)
    )


class Settled:
    """The facts of a program as they held a moment ago, where words can tell that nothing has changed since.

    `restless` are the numbers of facts whose words change though they hold: these are asked in Python. With `places`,
    it matters too where captured tensors lie.
    """

    def __init__(
        self, facts: Sequence[Fact], slots: Sequence[Slot], restless: frozenset[int], *, places: bool = False
    ) -> None:
        images: Images = {}
        self._facts = tuple(facts)  # they hold what the rows are about, with what is in containers now
        self._items: list[Any] = []
        self._fact_rows = {
            number: rows
            for number, fact in enumerate(facts)
            if number not in restless and (rows := _rows_of(fact, images, self._items)) is not None
        }
        self._loose = tuple(fact for number, fact in enumerate(facts) if number not in self._fact_rows)
        modules = [
            fact.module
            for number, fact in enumerate(facts)
            if number in self._fact_rows and isinstance(fact, ModuleFacts)
        ]
        watched = {id(entry) for module in modules for entry in _dictionaries(module)}
        self.tensors = tuple([slot.get() for slot in slots])
        held = [pair for pair in zip(slots, self.tensors, strict=True) if id(pair[0].container) not in watched]
        found = [held_rows(slot.container, slot.key, tensor, images) for slot, tensor in held]
        self._loose_slots = tuple(pair for pair, rows in zip(held, found, strict=True) if rows is None)
        rows = [row for rows in (*self._fact_rows.values(), *found) for row in rows or ()]
        self.words = Words([], self.tensors, list(dict.fromkeys(rows)), places=places)

    def is_told(self, beside: tuple[type, ...] = ()) -> bool:
        """Whether words tell all of it; `beside` are containers that others watch."""
        loose = [slot for slot, _ in self._loose_slots if not isinstance(slot.container, beside)]
        return not (self._loose or loose) and self.words.are_all

    def told(self) -> Told:
        """What an entry reads; the facts are kept as long as that."""
        words, captured, kept = self.words.told(self.tensors)
        return words, captured, (self, kept)

    def changed(self) -> frozenset[int]:
        """The numbers of the facts whose words have changed."""
        # SAFETY: the facts hold what the words are of, and a word that leads to others comes before them.
        return frozenset(
            number
            for number, rows in self._fact_rows.items()
            if not all(word(place) & bits == before for place, bits, before in rows)
        )

    def hold(self) -> bool:
        """Whether nothing has changed."""
        return (
            self.words.hold()
            and all(fact.change() is None for fact in self._loose)
            and all(slot.get() is tensor for slot, tensor in self._loose_slots)
        )


def still_holds(read: ReadByBackward | None) -> Callable[[], bool] | None:
    """Give what tells whether all of it is as it was; None where nothing was read."""
    return None if read is None else _StillHolds(read)


class _StillHolds:
    def __init__(self, read: ReadByBackward) -> None:
        self._read = read
        self._slots = [slot for slot, _ in read.places]
        self._attempts = BackOff(first=1)
        self._settled: Settled | None = None

    def __call__(self) -> bool:
        settled = self._settled
        if settled is not None and settled.hold():
            return True
        if not self._read.holds():
            return False
        # Words were changed to what they had been, or none were compared yet.
        if self._attempts.is_due() and can_watch([tensor for _, tensor in self._read.places]):
            self._settled = Settled(self._read.facts, self._slots, frozenset())
        return True


def _rows_of(fact: Fact, images: Images, kept: list[Any]) -> Rows | None:
    """The words that tell whether a fact holds; None where memory cannot tell. What they name is put in `kept`."""
    if isinstance(fact, SettingFact):
        return None
    if isinstance(fact, LibraryFact):
        return dictionary_rows(fact.own)
    if isinstance(fact, NameFact):
        parts = [held_rows(fact.container, fact.key, fact.value, images)]
        inside = [fact.value] if fact.is_open else []
    else:
        parts = [class_rows(fact.module), *(dictionary_rows(entry) for entry in _dictionaries(fact.module))]
        inside = [fact.module.__dict__[name] for name in fact.containers]
    parts += [content_rows(thing, can_change, kept=kept) for thing in inside]
    return None if None in parts else [row for part in parts for row in part or ()]


def _dictionaries(module: nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries that hold all that a module's facts are about."""
    own = module.__dict__
    return [own, *(own[name] for name in (*REGISTRIES, "_modules", *HOOKS) if type(own.get(name)) in DICTIONARIES)]
