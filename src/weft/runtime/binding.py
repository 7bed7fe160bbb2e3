"""Bind a program to its lasting inputs, in a built-in function that runs it while they are current.

Lasting inputs are parameters and buffers: the same tensors at nearly every call, some of them packed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from weft.codegen.calls.native_call import CallWord
from weft.codegen.torch_functions import version_of
from weft.runtime.arena import BlockPool
from weft.runtime.built_in import built_in, python_words, state_of, table_of
from weft.runtime.content import SameContent
from weft.runtime.memory_layout import EVERY_BIT, Row, object_layout, place_rows, tensor_layout, version_rows
from weft.runtime.watch import Changes
from weft.runtime.weights import Packing, address_of, current_forms, follow, packed_weight, weight_of

PackingOf = tuple[Packing, Sequence[torch.Tensor]]
RegionCall = Callable[..., bool | None]
"""Takes inputs, outputs, the address of a frame, and that of moves, if there are some."""


@dataclass(frozen=True, slots=True)
class NativeCode:
    """What a native call needs of a program.

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

    def words(self) -> dict[CallWord, int]:
        """Give the words of a state that say how it runs."""
        content = self.content
        return {
            CallWord.RUN: self.run,
            CallWord.PROGRAM: self.description,
            CallWord.CREW: self.crew,
            CallWord.CHECK: self.check,
            CallWord.SAME_CONTENT: 0 if content is None else content.run,
            CallWord.CONTENT: 0 if content is None else content.description,
        }


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program with lasting inputs: `rows` say that they are current, `kept` must live as long as it may run.

    `changing` of the code are positions of a call's arguments. `words` is the lasting part of the frame's table, and
    `pool` has the frames. `moves` are around a program that is bound for some of many sizes.
    """

    code: NativeCode
    rows: Sequence[Row]
    words: Sequence[int]
    pool: BlockPool
    kept: object
    moves: ctypes.Array[ctypes.c_uint64] | None = None


def refuse(*_: object) -> bool:
    """Stand for a region call where there is none."""
    return False


class Binding:
    """Lasting inputs in one state and the packed forms of some, with the facts by which this state is known.

    `written` are the positions of those whose elements matter; of the others only where they are. `words` is the part
    of a frame's table that lasts.
    """

    def __init__(
        self, lasting: Sequence[torch.Tensor], written: Collection[int], packings: Sequence[PackingOf], lanes: int = 1
    ) -> None:
        # Followed before the facts are taken, and these before packing: what is written meanwhile is a change.
        follow(tensor for _, tensors in packings for tensor in tensors)
        self._changes = Changes.count()
        self._identities = list(map(id, lasting))
        self._facts = _Facts(lasting, written)
        self._is_free = not lasting and not packings  # of whatever may change
        rows = [] if self._is_free else _rows(lasting, written)
        # Inference tensors have no version: their bytes tell.
        uncounted = [lasting[number] for number in sorted(written) if lasting[number].is_inference()]
        self.content = SameContent(uncounted, lanes) if uncounted else None
        self._records = [weight_of(tensor) for tensor in lasting]  # they tell when a tensor has ended
        self.shared = [packed_weight(packing, tensors) for packing, tensors in packings]
        self.packed = current_forms(self.shared, [tensors for _, tensors in packings])
        self.packed_addresses = [address for one in self.packed for address in one.addresses]
        compared = set(map(id, uncounted))
        weights = (weight for one in self.shared for weight in one.weights)
        self._is_doubtful = any(weight.is_doubtful and weight.identity not in compared for weight in weights)
        self.rows = rows
        self.words: tuple[int, ...] = ()
        self.call: RegionCall = refuse
        self.code: NativeCode | None = None

    def make_call(self, code: NativeCode, lasting: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Make the function that runs a program while this binding is current, where there can be one."""
        if object_layout() is None or self._is_doubtful:
            return
        # A row for the count of changes comes first: an identity stands for its tensor only while it agrees.
        tables = {
            CallWord.ROWS: table_of(self.rows),
            CallWord.SAME: table_of([(position, id(tensor)) for position, tensor in lasting]),
            CallWord.CHANGING: table_of(code.changing),
            CallWord.OUTPUTS: table_of(code.outputs),
            CallWord.LASTING: table_of([self.words]),
        }
        words = {
            **python_words(),
            **code.words(),
            **{name: ctypes.addressof(table) for name, table in tables.items()},
            CallWord.ROW_COUNT: len(self.rows),
            CallWord.SAME_COUNT: len(lasting),
            CallWord.CHANGING_COUNT: len(code.changing),
            CallWord.INPUT_COUNT: code.input_count,
            CallWord.OUTPUT_COUNT: len(code.outputs),
            CallWord.LASTING_COUNT: len(self.words),
        }
        self._tables = tables  # the function reads them, and whoever calls it holds this binding
        self.call, self.code = built_in("region_call", state_of(CallWord, words)), code

    def is_current(self, lasting: Sequence[torch.Tensor]) -> bool:
        """Tell whether these are the tensors of this binding, unchanged."""
        # An identity stands for its tensor as long as none has ended since, which counts as a change.
        return self._is_free or (
            not self._is_doubtful
            and self._changes == Changes.count()
            and self._identities == [*map(id, lasting)]
            and self._facts.hold(lasting)
            and (self.content is None or self.content.holds())
        )


class _Facts:
    """Where tensors are and which version some of them have."""

    def __init__(self, tensors: Sequence[torch.Tensor], written: Collection[int]) -> None:
        self._addresses = list(map(address_of, tensors))
        self._written = [number for number in sorted(written) if not tensors[number].is_inference()]
        self._versions = [version_of(tensors[number]) for number in self._written]

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Tell whether nothing has changed."""
        versions = [version_of(tensors[number]) for number in self._written]
        return self._versions == versions and self._addresses == list(map(address_of, tensors))


def _rows(lasting: Sequence[torch.Tensor], written: Collection[int]) -> list[Row]:
    """Give the words of memory that must not change while a binding is current."""
    layout, objects = tensor_layout(), object_layout()
    if layout is None or objects is None:
        return []
    rows = [Changes.row()]
    for tensor in lasting:
        # First that the object stands for the same tensor: two objects may have exchanged theirs.
        rows += [(id(tensor) + objects.tensor, EVERY_BIT, tensor._cdata), *place_rows(tensor, layout)]
    for number in written:
        if not lasting[number].is_inference():
            rows += version_rows(lasting[number], layout)
    return rows
