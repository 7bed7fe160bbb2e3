"""Write what native code reads of a call's sizes: where tensors go, what new ones look like, numbers for kernels.

All of it is words in one block of memory, which one function of Python computes and writes for sizes that have not come
before. A block belongs to one call at a time.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.codegen.calls.moves import MOVE_WORDS, MOVED_DIMENSIONS
from weft.ir.extents import Polynomial
from weft.ir.size_arithmetic import SizeArithmetic, row_of
from weft.runtime.built_in import table_of
from weft.runtime.large_forms import ONE, ResultPart, SizeStep, lie_there
from weft.runtime.moves import LargePlace
from weft.runtime.new_tensors import TYPE_NUMBERS, OutputType, native_maker

WORD = 8  # bytes
SCALARS = {
    torch.float64: "d",
    torch.float32: "f4x",
    torch.int64: "q",
    torch.int32: "i4x",
    torch.int16: "h6x",
    torch.int8: "b7x",
    torch.uint8: "B7x",
    torch.bool: "?7x",
}
"""How a number of each type is a word."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor in larger memory, or one that comes out of it, with what each of its elements takes."""

    place: LargePlace
    steps: Sequence[SizeStep]
    item: int

    def words(self, written: SizeArithmetic) -> list[str] | None:
        """The texts of the words of its move; none where it lies where it is, None where too much lies apart."""
        if self.place.dense or (self.place.tight and lie_there(self.steps)):
            return []
        steps = [step for step in self.steps if step.count != ONE]
        whole, kept = self._joined(steps)
        if len(kept) > MOVED_DIMENSIONS:
            return None
        padded = [*[SizeStep(ONE, 0, Polynomial.constant(0))] * (MOVED_DIMENSIONS - len(kept)), *kept]
        place = (self.place.slot, self.place.offset, self.place.cleared)
        counts = (written.size(step.count) for step in padded)
        own = (written.size(step.own) for step in padded)
        return [*map(str, place), written.size(whole), *counts, *(str(step.large) for step in padded), *own]

    def _joined(self, steps: Sequence[SizeStep]) -> tuple[Polynomial, list[SizeStep]]:
        """The bytes that lie side by side in both at all sizes, and the dimensions around these."""
        kept: list[SizeStep] = []
        for step in steps:
            before = kept[-1] if kept else None
            count = step.count.number
            if before and count and before.large == count * step.large and before.own == step.own.times(step.count):
                kept[-1] = SizeStep(before.count.times(step.count), step.large, step.own)
            else:
                kept.append(step)
        whole = Polynomial.constant(self.item)
        if kept and kept[-1].large == self.item and kept[-1].own.number == self.item:
            whole = whole.times(kept.pop().count)
        return whole, kept


@dataclass(frozen=True, slots=True)
class Results:
    """The tensors that a program gives: of each how it looks, or how that follows from sizes."""

    kinds: Sequence[OutputType]
    parts: Mapping[int, ResultPart]

    def words(self, written: SizeArithmetic) -> list[list[str]]:
        """The texts of the sizes and then the strides of each."""
        found = []
        for place, kind in enumerate(self.kinds):
            part = self.parts.get(place)
            shape, strides = (kind.shape, kind.strides) if part is None else part.form(written)
            found.append([*map(str, shape), *map(str, strides)])
        return found


class SizeBlock:
    """The words for one call, with what reads them."""

    __slots__ = ("memory", "new_results", "numbers", "rows", "scalars")

    def __init__(self, count: int, scalars: Mapping[int, torch.dtype], results: Mapping[int, OutputType]) -> None:
        """`scalars` are the types of numbers by their words, `results` is how tensors look by the first of theirs."""
        self.memory = (ctypes.c_uint64 * count)()
        address = ctypes.addressof(self.memory)
        with torch.inference_mode(False):  # calls in other modes have them too
            self.scalars = tuple(
                torch.frombuffer(self.memory, dtype=dtype, count=1, offset=at * WORD).reshape(())
                for at, dtype in scalars.items()
            )
        self.rows = table_of(
            [
                (
                    len(kind.shape),
                    address + at * WORD,
                    address + (at + len(kind.shape)) * WORD,
                    TYPE_NUMBERS[kind.dtype],
                )
                for at, kind in results.items()
            ]
        )
        self.new_results = native_maker(len(results), self.rows) or tuple
        self.numbers: tuple[int, ...] | None = None  # the sizes that its words are for


class SizeWords:
    """The blocks of one program; any thread may take one."""

    def __init__(
        self,
        written: SizeArithmetic,
        scalars: Sequence[tuple[torch.dtype, str]],
        moves: tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]],
        results: tuple[Results, Sequence[Sequence[str]]],
        description: str,
    ) -> None:
        before, behind = ([move for move in some if move] for some in moves)
        kinds, rows = results
        head = [str(len(before)), str(len(behind)), description]
        words = [
            *head,
            *(word for move in (*before, *behind) for word in move),
            *(word for row in rows for word in row),
        ]
        first = len(head) + MOVE_WORDS * (len(before) + len(behind))
        self._results: dict[int, OutputType] = {}
        for kind, row in zip(kinds.kinds, rows, strict=True):
            self._results[first] = kind
            first += len(row)
        self._scalars = {first + place: dtype for place, (dtype, _) in enumerate(scalars)}
        self._count = first + len(scalars)
        self._struct = struct.Struct(f"@{len(words)}q" + "".join(SCALARS[dtype] for dtype, _ in scalars))
        self._words: Callable[..., tuple[Any, ...]] = written.function(row_of([*words, *(text for _, text in scalars)]))
        self._idle: list[SizeBlock] = []

    def take(self, numbers: tuple[int, ...]) -> SizeBlock | None:
        """A block with the words of some sizes; None where a number is none."""
        try:
            block = self._idle.pop()
        except IndexError:
            block = SizeBlock(self._count, self._scalars, self._results)
        if block.numbers != numbers:
            block.numbers = None
            try:
                self._struct.pack_into(block.memory, 0, *self._words(*numbers))
            except (struct.error, OverflowError):
                return None
            block.numbers = numbers
        return block

    def give_back(self, block: SizeBlock) -> None:
        """Let another call have a block."""
        self._idle.append(block)
