"""Say how tensors go to the beginning of larger memory behind a frame, and come out of it, as native code reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch

from weft.codegen.calls.moves import DESCRIPTION, LINE, MOVED_DIMENSIONS
from weft.plan.form.plan import BufferKind
from weft.runtime.arena import block_pool
from weft.runtime.binding import BoundProgram
from weft.runtime.built_in import table_of
from weft.runtime.executable import NativeExecutable, Words
from weft.runtime.new_tensors import TYPE_NUMBERS, OutputType

Step = tuple[int, int, int]  # of a dimension: how often, bytes from one to the next in larger memory, and in a tensor


@dataclass(frozen=True, slots=True)
class LargePlace:
    """Where larger memory for a tensor is: the tensor's place in the frame's table, bytes from the frame's start.

    `cleared` bytes of it become 0 before: whole numbers there may be places that code reads at.
    """

    slot: int
    offset: int
    cleared: int = 0

    tight: bool = False
    """Whether code touches nothing beyond the tensor: it needs no larger memory where it lies as it would there."""

    dense: bool = False
    """Whether code expects the tensor as it lies by itself, without gaps: it never needs larger memory."""

    def is_there(self, steps: Sequence[Step]) -> bool:
        """Whether a tensor can be where it is."""
        return self.dense or (self.tight and all(large == own for count, large, own in steps if count > 1))

    def move(self, steps: Sequence[Step], item: int) -> tuple[int, ...] | None:
        """The words of a move; None where a tensor has too many dimensions that lie apart."""
        whole, kept = joined(steps, item)
        if len(kept) > MOVED_DIMENSIONS:
            return None
        padded = [*[(1, 0, 0)] * (MOVED_DIMENSIONS - len(kept)), *kept]
        counts, large, own = zip(*padded, strict=True)
        return (self.slot, self.offset, self.cleared, whole, *counts, *large, *own)


def joined(steps: Sequence[Step], item: int) -> tuple[int, list[Step]]:
    """The bytes that lie side by side in both, and the dimensions around these, the outermost first."""
    if any(count == 0 for count, _, _ in steps):
        return 0, [(0, 0, 0)]
    kept: list[Step] = []
    for count, large, own in sorted((step for step in steps if step[0] != 1), key=lambda step: -step[2]):
        if kept and kept[-1][1:] == (count * large, count * own):
            kept[-1] = (kept[-1][0] * count, large, own)
        else:
            kept.append((count, large, own))
    whole = item
    if kept and kept[-1][1:] == (item, item):
        whole *= kept.pop()[0]
    return whole, kept


def extent_bytes(kind: OutputType) -> int:
    """The bytes from the first to the last element."""
    if 0 in kind.shape:
        return 0
    reach = sum((size - 1) * step for size, step in zip(kind.shape, kind.strides, strict=True))
    return (reach + 1) * kind.dtype.itemsize


def places_behind(frame_bytes: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where larger memory of so many bytes is, one behind the other, with room before each; and where all ends."""
    found, end = [], frame_bytes
    for size in sizes:
        end = -(-end // LINE) * LINE + LINE
        found.append(end)
        end += size
    return found, end


def table_of_moves(before: Sequence[tuple[int, ...]], behind: Sequence[tuple[int, ...]], description: int = 0) -> Words:
    """Put moves in memory: how many there are, where lanes are described, then their words."""
    return table_of([(len(before), len(behind), description), *before, *behind])


class MovedCode:
    """A program that is one region in machine code, and memory behind its frames for tensors of the largest sizes."""

    def __init__(self, executable: NativeExecutable, order: Sequence[int], kinds: Sequence[OutputType]) -> None:
        """`order` says which of the inputs given are the region's; `kinds` is what it gives."""
        self._executable = executable
        self._order = tuple(order)
        self._pick = itemgetter(*order) if len(order) > 1 else lambda given: [given[place] for place in order]
        self.kinds = tuple(kinds)
        self._pool = block_pool(executable.frame_bytes)
        self._tight, self._dense = (
            {(executable.plan.buffers[number].kind, executable.plan.buffers[number].index) for number in numbers}
            for numbers in (executable.plan.tight, executable.plan.dense)
        )

    def place(
        self, inputs: Mapping[int, int], cleared: Collection[int], outputs: Mapping[int, int]
    ) -> tuple[dict[int, LargePlace], dict[int, LargePlace]] | None:
        """Give places to the largest forms of some inputs and of some outputs, with their bytes.

        None where native code cannot make what the region gives, or where an input is one that lasts.
        """
        slots = [self._executable.input_slot(index) for index in inputs]
        if None in slots or any(kind.dtype not in TYPE_NUMBERS for kind in self.kinds):
            return None
        sizes = [*inputs.values(), *outputs.values()]
        offsets, end = places_behind(self._executable.frame_bytes, sizes)
        self._pool = block_pool(end)
        before = {
            index: self._place("input", index, slot or 0, offset, size if index in cleared else 0)
            for (index, size), slot, offset in zip(inputs.items(), slots, offsets, strict=False)
        }
        rest = zip(outputs, offsets[len(inputs) :], strict=True)
        return before, {
            index: self._place("output", index, self._executable.output_slot(index), offset) for index, offset in rest
        }

    def _place(self, kind: BufferKind, index: int, slot: int, offset: int, cleared: int = 0) -> LargePlace:
        return LargePlace(slot, offset, cleared, self.is_tight(kind, index), self.is_dense(kind, index))

    def is_dense(self, kind: BufferKind, index: int) -> bool:
        """Whether an input or output lies as it does by itself at any sizes."""
        return (kind, index) in self._dense

    def is_tight(self, kind: BufferKind, index: int) -> bool:
        """Whether nothing of an input or output is touched beyond the sizes of a call."""
        return (kind, index) in self._tight

    def room(self, kind: BufferKind, index: int, size: int, *, always: bool) -> int:
        """How much larger memory an input or output needs, of so many bytes at most.

        It needs none where code takes it as it lies, or where tensors `always` lie as they would there and code touches
        nothing beyond them.
        """
        return 0 if self.is_dense(kind, index) or (always and self.is_tight(kind, index)) else size

    def moves(
        self, before: Sequence[tuple[int, ...] | None], behind: Sequence[tuple[int, ...] | None], work: int
    ) -> Words | None:
        """Put moves where native code reads them; None where one has no words.

        What a call computes says with which others it shares the choice between lanes and one lane.
        """
        if None in before or None in behind:
            return None
        description = self.description_for(work)
        return table_of_moves([move for move in before if move], [move for move in behind if move], description)

    def description_for(self, work: int) -> int:
        """Which description of lanes calls have that compute so much, compared with others."""
        return self._executable.description_for(max(work, 1).bit_length())

    def steady(self, tail: Sequence[Any], moves: Words) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], bool]:
        """Give what runs it for calls of some sizes; `tail` stands behind the inputs of each call."""
        run, pick, behind = self._executable.moved_runner(self._pool, moves), self._pick, tuple(tail)
        return lambda inputs, outputs: run(pick([*inputs, *behind]), outputs)

    def bound(self, arguments: Sequence[int], inputs: int, tail: Sequence[Any], moves: Words) -> BoundProgram | None:
        """Give what runs it as it is bound now, for calls of some sizes; the first inputs are `arguments` of a call.

        There are so many inputs, and then the `tail`; of what is in it, tensors stay where they are.
        """
        count, positions, fixed = len(arguments), [], {}
        for place, index in enumerate(self._order):
            positions.append(arguments[index] if index < count else count - 1 - index)
            if index >= inputs:
                thing = tail[index - inputs]
                if not isinstance(thing, torch.Tensor):
                    return None
                fixed[place] = thing.data_ptr()
        found = self._executable.bound(positions, fixed)
        if found is None:
            return None
        code = replace(found.code, description=moves[DESCRIPTION] or found.code.description)
        return replace(found, code=code, pool=self._pool, kept=(found.kept, tuple(tail)), moves=moves)

    def run(self, given: Sequence[Any], outputs: Sequence[torch.Tensor], moves: Words) -> bool:
        """Run it, if what lasts is as it was."""
        return self._executable.run_moved(self._pick(given), outputs, self._pool, moves)
